//! Remedies in reports of mistakes, and warnings about valid settings that are perhaps not intended.

use schemars::JsonSchema;
use serde::Deserialize;

use super::*;

#[test]
fn a_text_that_is_not_yaml_is_refused_with_a_hint() {
    let (tab, quote) = ("indent with spaces: YAML takes no tabs", "put text with `${...}` in quotes");
    let indentation = "check the indentation: all keys of a mapping begin in the same column";
    for (yaml, place, hint) in [
        ("redis:\n\ttimeout: 1s\n", "1.yaml:2:2", tab),
        ("redis:\n  timeout: 1s\n\turl: x\n", "1.yaml:2:12", tab),
        ("redis: { password: ${PW} }\n", "1.yaml:1:21", quote),
        ("redis: { url: \"a\", password: ${PW:-x} }\n", "1.yaml:1:31", quote),
        ("server: { auth: { tokens: [${T}] } }\n", "1.yaml:1:29", quote),
        ("redis:\n  timeout: 1s\n url: x\n", "1.yaml:3:2", indentation),
        ("redis:\n  timeout: 1s\n    url: x\n", "1.yaml:3:8", indentation),
        ("log:\n  level: info\n\n   format: x\n", "1.yaml:4:10", indentation),
        ("redis:\n  url: a: b\n", "1.yaml:2:9", "put text with `: ` in quotes"),
        ("redis: { password: 'it is', url: ${A} }\n", "1.yaml:1:35", quote),
    ] {
        let problems = Setup::new(&[yaml], &[]).problems();
        let [problem] = &problems[..] else { panic!("{yaml}: {problems:#?}") };
        assert!(problem.starts_with(&format!("{place}: is not YAML: ")), "{yaml}: {problem}");
        assert!(problem.ends_with(hint), "{yaml}: {problem}");
    }
    for yaml in [
        "redis: {url: '${A}\n",
        "redis: ${A}: {\n",
        "redis: {url: $A\n",
        "sinks:\n  a: {type: http\n  b: {type: http}\n",
        "redis: [\n",
        "redis: {url: a # ${A}\n",
        "redis: {url: a} ${A\n",
    ] {
        let problem = Setup::new(&[yaml], &[("A", "x")]).problems().remove(0);
        assert!(problem.contains("is not YAML: ") && !problem.contains("; "), "no hint fits: {problem}");
    }
}

#[test]
fn a_duplicate_key_is_reported_once_with_both_places() {
    let setup =
        Setup::new(&["redis: {timeout: 1s}\nlog: {}\nredis:\n  timeout: 2s\n  key_prefix: a\n  key_prefix: b\n"], &[]);
    assert_eq!(
        setup.problems(),
        [
            "1.yaml:3:1: redis: is a duplicate key: it is at line 1, column 1 too",
            "1.yaml:6:3: redis.key_prefix: is a duplicate key: it is at line 5, column 3 too",
        ]
    );
}

#[test]
fn what_is_valid_and_perhaps_not_meant_is_warned_of() {
    let warnings = |setup: &Setup| {
        let directory = format!("{}/", setup.directory.path().display());
        let warnings = setup.load().unwrap_or_else(|errors| panic!("{errors}")).warnings;
        warnings.iter().map(|warning| warning.to_string().replace(&directory, "")).collect::<Vec<_>>()
    };
    let sinks = "sinks: {a: {type: redis_list, key: k}, b: {type: redis_list, key: l}}\nroutes: {r: {sink: a}}";
    assert_eq!(warnings(&Setup::new(&[sinks], &[])), ["1.yaml:1:40: sinks.b: no route uses it"]);
    let unused = "sinks: {a: {type: redis_list, key: k}}\nroutes: {r: {sink: a, dead: {then: purge}}}";
    assert_eq!(
        warnings(&Setup::new(&[unused], &[])),
        ["1.yaml:2:30: routes.r.dead.then: has no effect without `forward`"]
    );
    let default =
        "sinks: {a: {type: redis_list, key: k}}\nroutes: {r: {sink: a}}\nroute_defaults: {dead: {then: purge}}";
    assert!(warnings(&Setup::new(&[default], &[])).is_empty());
    assert_eq!(warnings(&Setup::new(&["max_sleep: 1s", "# nothing\n"], &[])), ["2.yaml: is empty"]);
    assert_eq!(
        warnings(&Setup::new(&[], &[])),
        ["no configuration file: only defaults, environment and command line; name one with -c"]
    );
}

#[test]
fn a_type_that_this_build_lacks_names_its_feature() {
    let mut registry = Registry::default();
    registry.sinks.absent("kafka", "kafka");
    let setup =
        Setup::new(&["sink_defaults: {kafka: {timeout: 1s}}\nsinks: {a: {type: kafka}}\nroutes: {r: {sink: a}}"], &[]);
    let errors = load(&setup.sources, &registry).unwrap_err();
    let shown: Vec<String> = errors.0.iter().map(|problem| format!("{}: {}", problem.path, problem.text)).collect();
    assert_eq!(shown, ["sinks.a.type: this build has no kafka: build with `--features kafka`"]);
}

#[test]
fn a_program_that_embeds_this_one_adds_its_own_type() {
    /// Messages that are read aloud.
    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Speaker {
        voice: String,
        volume: Whole<1, 10>,
    }

    impl Settings for Speaker {
        fn check(&mut self, at: &Path, _: &Context, problems: &mut Problems) {
            if self.voice.is_empty() {
                problems.add(&at.key("voice"), "is empty");
            }
        }
    }

    impl SinkSettings for Speaker {
        fn kind(&self) -> &'static str {
            "speaker"
        }

        fn timeout(&self) -> Duration {
            Duration::from_secs(1)
        }

        fn open(&self) -> Result<crate::sink::OpenSink, String> {
            Err("there is no loudspeaker".into())
        }
    }

    let mut registry = connector::registry();
    registry.sink::<Speaker>("speaker");
    let sinks = |settings: &str| {
        let yaml = format!("sink_defaults: {{speaker: {{volume: 3}}}}\nsinks: {{a: {{type: speaker, {settings}}}}}");
        load(&Setup::new(&[&yaml], &[]).sources, &registry)
    };
    let config = sinks("voice: v").unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!((config.sink::<Speaker>("a").voice.as_str(), config.sink::<Speaker>("a").volume), ("v", Whole(3)));
    for (settings, text) in [
        ("voice: ''", "sinks.a.voice: is empty"),
        ("volume: 11", "sinks.a.volume: `11` is not within 1 .. 10"),
        ("volume: 11", "sinks.a.voice: is missing"),
        ("voise: v", "sinks.a.voise: `voise` is unknown: did you mean `voice`? known: voice, volume"),
    ] {
        let errors = sinks(settings).unwrap_err().to_string();
        assert!(errors.contains(text), "{settings}: {errors}");
    }
    let schema = schema(&registry);
    let validator = jsonschema::validator_for(&schema).unwrap();
    for (volume, is_valid) in [(10, true), (11, false)] {
        let instance = serde_json::json!({ "sinks": { "a": { "type": "speaker", "voice": "v", "volume": volume } } });
        assert_eq!(validator.is_valid(&instance), is_valid, "{volume}");
    }
}

#[test]
fn librdkafka_has_the_mechanisms_of_sasl() {
    for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] {
        let yaml = format!(
            "sinks: {{a: {{type: kafka, topic: t, brokers: 'b:1', options: {{security.protocol: sasl_ssl}}, \
             sasl: {{mechanism: {mechanism}, username: u, password: p}}}}}}\nroutes: {{r: {{sink: a}}}}"
        );
        let config = Setup::new(&[&yaml], &[]).load().unwrap_or_else(|errors| panic!("{errors}"));
        config.sinks["a"].open().map_or_else(|error| panic!("{mechanism}: {error}"), drop);
    }
}
