//! `deploy/kubernetes/`: what the manifests must have, and that they are what `deploy/helm` renders.

use std::{fs, net::IpAddr, process::Command};

use serde_json::Value;

use super::{check, document, list, path, run, string, text};

const DIRECTORY: &str = "deploy/kubernetes";

fn manifest(name: &str) -> Value {
    document(&format!("{DIRECTORY}/{name}.yaml"))
}

pub fn pod() -> Value {
    manifest("deployment")["spec"]["template"]["spec"].clone()
}

pub fn container() -> Value {
    let pod = pod();
    let containers = list(&pod, "/containers");
    assert_eq!(containers.len(), 1);
    containers[0].clone()
}

pub fn seconds(text: &str) -> u64 {
    text.trim_end_matches('s').parse().expect("seconds")
}

/// Seconds between the removal of a pod from its Service and SIGTERM.
pub fn pause() -> u64 {
    container().pointer("/lifecycle/preStop/sleep/seconds").and_then(Value::as_u64).expect("a number")
}

/// helm itself compares them too, in `deploy/helm/check.sh`.
#[test]
fn the_manifests_are_rendered_from_the_chart_of_today() {
    let record = text("deploy/kubernetes/rendered.sha256");
    run(Command::new("sha256sum")
        .args(["--check", "--strict", "--quiet", "deploy/kubernetes/rendered.sha256"])
        .current_dir(path("")));
    let recorded = |name: &str| record.lines().any(|line| line.ends_with(&format!("  {name}")));
    for entry in fs::read_dir(path("deploy/helm/templates")).expect("a directory") {
        let name = format!("deploy/helm/templates/{}", entry.expect("an entry").file_name().display());
        assert!(recorded(&name), "{name} is new: deploy/helm/check.sh --write");
    }
    for file in
        ["deployment", "service", "disruption-budget", "network-policy", "monitoring/service-monitor", "punctual"]
    {
        assert!(recorded(&format!("{DIRECTORY}/{file}.yaml")), "{file}");
    }
}

/// The schemas of Kubernetes, where helm and they are there.
#[test]
fn the_chart_is_valid_and_renders_the_manifests() {
    if path("target/helm/helm").exists() {
        run(&mut Command::new(path("deploy/helm/check.sh")));
    } else {
        eprintln!("skipped: there is no target/helm/helm; deploy/helm/check.sh installs it");
    }
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart = document("deploy/helm/Chart.yaml");
    for field in ["version", "appVersion"] {
        assert_eq!(chart[field], env!("CARGO_PKG_VERSION"), "{field}");
    }
    assert_eq!(manifest("kustomization")["images"][0]["newTag"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn each_resource_of_a_kustomization_is_a_file_with_kind_and_name() {
    let mut kinds = Vec::new();
    for directory in [DIRECTORY.to_owned(), format!("{DIRECTORY}/monitoring")] {
        let kustomization = document(&format!("{directory}/kustomization.yaml"));
        assert_eq!(kustomization["kind"], "Kustomization");
        for name in list(&kustomization, "/resources") {
            let resource = document(&format!("{directory}/{}", name.as_str().expect("a name")));
            assert!(resource["apiVersion"].is_string(), "{name}");
            assert_eq!(string(&resource, "/metadata/name"), "punctual", "{name}");
            kinds.push(string(&resource, "/kind").to_owned());
        }
        for file in
            kustomization["configMapGenerator"].as_array().into_iter().flatten().flat_map(|map| list(map, "/files"))
        {
            assert!(path(&directory).join(file.as_str().expect("a name")).exists(), "{file}");
        }
    }
    let expected = ["Namespace", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor"];
    assert_eq!(kinds, expected);
    let kustomization = manifest("kustomization");
    assert_eq!(
        string(&kustomization, "/images/0/name"),
        string(&container(), "/image").split(':').next().expect("a name"),
        "the image is set in one place"
    );
}

#[test]
fn everything_selects_the_pods_of_the_deployment() {
    let deployment = manifest("deployment");
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    for (name, pointer) in [
        ("deployment", "/spec/selector/matchLabels"),
        ("service", "/spec/selector"),
        ("disruption-budget", "/spec/selector/matchLabels"),
        ("network-policy", "/spec/podSelector/matchLabels"),
    ] {
        assert_eq!(manifest(name).pointer(pointer), Some(labels), "{name}");
    }
    let monitor = manifest("monitoring/service-monitor");
    let service = manifest("service");
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"]);
    assert_eq!(service["metadata"]["name"], "punctual", "the name of the job");
    let port = string(&monitor, "/spec/endpoints/0/port").to_owned();
    assert!(list(&service, "/spec/ports").iter().any(|known| known["name"] == *port));
}

#[test]
fn an_instance_may_go_and_the_other_continues() {
    let deployment = manifest("deployment");
    assert_eq!(deployment["spec"]["replicas"], 2);
    assert_eq!(deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"], 0);
    let budget = manifest("disruption-budget");
    let kept = budget["spec"]["minAvailable"].as_u64().expect("a number");
    assert!((1..2).contains(&kept), "a drain must be able to evict one, and only one");
    let pause = pause();
    let shutdown = document(&format!("{DIRECTORY}/punctual.yaml"))["shutdown_timeout"].as_str().map(seconds);
    let grace = pod()["terminationGracePeriodSeconds"].as_u64().expect("a number");
    assert!(grace >= pause + shutdown.expect("it is written down") + 5, "{grace} s");
}

#[test]
fn probes_ask_the_health_listener() {
    let (container, configuration) = (container(), document(&format!("{DIRECTORY}/punctual.yaml")));
    let port = |name: &str| {
        let ports = list(&container, "/ports");
        ports.iter().find(|port| port["name"] == name).expect("a port")["containerPort"].to_string()
    };
    assert_eq!(string(&configuration, "/server/health_listen"), format!("0.0.0.0:{}", port("health")));
    assert_eq!(string(&configuration, "/server/listen"), format!("0.0.0.0:{}", port("api")));
    for (probe, path) in [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
        let request = &container[probe]["httpGet"];
        assert_eq!((&request["path"], &request["port"]), (&path.into(), &"health".into()), "{probe}");
    }
}

#[test]
fn the_pod_has_few_rights() {
    let (pod, container) = (pod(), container());
    let user = &pod["securityContext"];
    assert_eq!(
        (&user["runAsNonRoot"], &user["runAsUser"], &user["runAsGroup"]),
        (&true.into(), &10001.into(), &10001.into())
    );
    assert_eq!(user["seccompProfile"]["type"], "RuntimeDefault");
    let rights = &container["securityContext"];
    assert_eq!(rights["readOnlyRootFilesystem"], true);
    assert_eq!(rights["allowPrivilegeEscalation"], false);
    assert_eq!(rights["capabilities"]["drop"], Value::from(vec!["ALL"]));
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(manifest("namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
    for (pointer, what) in [
        ("/resources/requests/cpu", "CPU"),
        ("/resources/requests/memory", "memory"),
        ("/resources/limits/memory", "a bound"),
    ] {
        assert!(container.pointer(pointer).is_some(), "{what}");
    }
    for mount in list(&container, "/volumeMounts") {
        assert_eq!(mount["readOnly"], true, "{mount}");
    }
}

#[test]
fn the_network_policy_lets_in_callers_and_out_what_punctual_needs() {
    let policy = manifest("network-policy");
    assert_eq!(policy["spec"]["policyTypes"], Value::from(vec!["Ingress", "Egress"]));
    for rule in list(&policy, "/spec/ingress") {
        assert_eq!(rule["ports"][0]["port"], "api");
        assert!(!list(rule, "/from").is_empty(), "open to all");
    }
    for (protocol, port, address, what) in [
        ("UDP", 53, "10.96.0.10", "names"),
        ("TCP", 53, "10.96.0.10", "names with long answers"),
        ("TCP", 6379, "10.0.0.1", "Redis"),
        ("TCP", 9092, "10.0.0.1", "Kafka"),
        ("TCP", 5671, "fd12::1", "RabbitMQ"),
        ("TCP", 443, "203.0.113.1", "an endpoint"),
    ] {
        assert!(leaves(&policy, protocol, port, address), "{what}");
    }
    for (port, address) in [(80, "169.254.169.254"), (80, "fd00:ec2::254")] {
        assert!(!leaves(&policy, "TCP", port, address), "the metadata address of clouds");
    }
    assert!(!leaves(&policy, "UDP", 123, "10.0.0.1"), "not needed");
}

/// Whether a policy lets a pod send there.
fn leaves(policy: &Value, protocol: &str, port: u64, address: &str) -> bool {
    let address: IpAddr = address.parse().expect("an address");
    let within = |cidr: &Value| within(cidr.as_str().expect("a network"), address);
    list(policy, "/spec/egress").iter().any(|rule| {
        let is_port = |of: &Value| {
            let first = of["port"].as_u64().expect("a number");
            of["protocol"] == protocol && (first..=of["endPort"].as_u64().unwrap_or(first)).contains(&port)
        };
        let is_address = |to: &Value| {
            let block = &to["ipBlock"];
            within(&block["cidr"]) && !block["except"].as_array().into_iter().flatten().any(within)
        };
        list(rule, "/ports").iter().any(is_port)
            && rule["to"].as_array().is_none_or(|networks| networks.iter().any(is_address))
    })
}

fn within(cidr: &str, address: IpAddr) -> bool {
    let (network, length) = cidr.split_once('/').expect("a network and its length");
    let length: u32 = length.parse().expect("a number");
    let bits =
        |shift: u32, address: u128, network: u128| (address ^ network).checked_shr(shift - length).unwrap_or(0) == 0;
    match (network.parse().expect("an address"), address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => bits(32, address.to_bits().into(), network.to_bits().into()),
        (IpAddr::V6(network), IpAddr::V6(address)) => bits(128, address.to_bits(), network.to_bits()),
        _ => false,
    }
}

#[test]
fn secrets_are_references_and_punctual_accepts_the_configuration() {
    let pod = pod();
    let volumes = list(&pod, "/volumes");
    let secret = volumes.iter().find(|volume| volume["secret"].is_object()).expect("a Secret");
    let items = list(secret, "/secret/items").iter();
    let names: Vec<&str> = items.map(|item| string(item, "/path")).collect();
    let at = list(&container(), "/volumeMounts").iter().find(|mount| mount["name"] == secret["name"]).cloned();
    let at = format!("{}/", string(&at.expect("it is mounted"), "/mountPath"));
    let configuration = text(&format!("{DIRECTORY}/punctual.yaml"));
    for name in &names {
        assert!(configuration.contains(&format!("${{file:{at}{name}}}")), "{name} is not used");
    }
    assert_eq!(configuration.matches("${file:").count(), names.len());
    check(&format!("{DIRECTORY}/punctual.yaml"), &at, &names);
    let monitor = manifest("monitoring/service-monitor");
    let credentials = &monitor["spec"]["endpoints"][0]["authorization"]["credentials"];
    assert_eq!(credentials["name"], secret["secret"]["secretName"]);
    assert!(names.contains(&credentials["key"].as_str().expect("a key")));
    assert_eq!(string(&container(), "/args/2"), "/etc/punctual/punctual.yaml");
}
