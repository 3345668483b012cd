//! Without a right that a script needs it leaves the state before it, or the state after it: no message is lost, none is in
//! two places.

use std::collections::BTreeSet;

use redis::{RedisResult, Value, aio::MultiplexedConnection};

use super::{
    bench::Bench,
    record::Recorded,
    scene::{SCENES, differing},
};

/// Time stands still, so that the state after a call is the same each time.
const FROZEN: &str = r"
local real = redis
local redis = {
  error_reply = real.error_reply,
  call = function(command, ...)
    local reply = real.call(command, ...)
    return command == 'TIME' and { '1700000000', '123456' } or reply
  end,
  pcall = real.pcall,
}
";

#[tokio::test]
async fn each_right_that_is_taken_away_alone_leaves_the_state_before_or_after() {
    let mut bench = Bench::start().await;
    let mut limited = bench.limited().await;
    let mut denied = 0;
    for (scene, script) in SCENES {
        bench.set(scene).await;
        let call = bench.record(scene, script).await;
        let code = format!("{FROZEN}{}", call.code);

        bench.set(scene).await;
        let before = bench.dump().await;
        redis::cmd("CONFIG").arg("RESETSTAT").exec_async(&mut bench.raw).await.expect("reset");
        call.run(&code, &mut limited).await.unwrap_or_else(|error| panic!("{scene}: {error}"));
        let used = bench.used().await;
        let after = bench.dump().await;

        for right in used {
            bench.permit(&format!("-{right}")).await;
            bench.set(scene).await;
            let result = call.run(&code, &mut limited).await;
            let now = bench.dump().await;
            bench.permit(&format!("+{right}")).await;
            match result {
                Ok(_) => assert_eq!(now, after, "{scene}: went on without {right}"),
                Err(error) => {
                    denied += 1;
                    assert!(now == before, "{scene}: without {right} it failed: {error}: {}", differing(&now, &before));
                }
            }
        }
    }
    assert!(denied > 400, "{denied} calls were denied something");
}

#[tokio::test]
async fn the_check_of_rights_names_each_command_that_is_denied() {
    let mut bench = Bench::start().await;
    let mut limited = bench.limited().await;
    bench.set("rights").await;
    let call = bench.record("rights", "rights").await;
    redis::cmd("CONFIG").arg("RESETSTAT").exec_async(&mut bench.raw).await.expect("reset");
    call.run(&call.code, &mut limited).await.expect("all rights");
    let each: Vec<_> = bench.used().await.into_iter().map(|right| vec![right]).collect();
    assert!(each.len() > 20, "{each:?}");
    for denied in each.into_iter().chain([vec![], vec!["hget".to_owned(), "zadd".to_owned()]]) {
        for right in &denied {
            bench.permit(&format!("-{right}")).await;
        }
        let reply = call.run(&call.code, &mut limited).await.expect("an answer");
        assert_eq!(redis::from_redis_value::<Vec<String>>(reply).expect("names"), denied);
        for right in &denied {
            bench.permit(&format!("+{right}")).await;
        }
    }
}

impl Bench {
    /// A connection of the user `limited`, who has all rights at first.
    async fn limited(&mut self) -> MultiplexedConnection {
        let client = redis::Client::open(self.server.url().replace("://", "://limited:secret@")).expect("a valid URL");
        self.permit("+@all").await;
        client.get_multiplexed_async_connection().await.expect("the server answers")
    }

    /// Changes the rights of the user `limited`.
    async fn permit(&mut self, right: &str) {
        let user = ["SETUSER", "limited", "on", ">secret", "~*", "&*", right];
        redis::cmd("ACL").arg(&user).exec_async(&mut self.raw).await.expect("a user");
    }

    /// The commands that were called since the statistics were reset.
    async fn used(&mut self) -> BTreeSet<String> {
        let stats: String =
            redis::cmd("INFO").arg("commandstats").query_async(&mut self.raw).await.expect("the server answers");
        let names = stats.lines().filter_map(|line| Some(line.strip_prefix("cmdstat_")?.split_once(':')?.0));
        let of_scripts = names.filter(|name| !["eval", "config|resetstat", "info"].contains(name));
        of_scripts.map(str::to_owned).collect()
    }
}

impl Recorded {
    async fn run(&self, code: &str, connection: &mut MultiplexedConnection) -> RedisResult<Value> {
        let mut command = redis::cmd("EVAL");
        command.arg(code).arg(self.keys.len()).arg(&self.keys);
        for argument in &self.arguments {
            command.arg(&argument[..]);
        }
        command.query_async(connection).await
    }
}
