//! An error at any command of any script leaves the state before it or the state after it, never one between.

use redis::{RedisResult, Value};

use super::{
    bench::Bench,
    record::Recorded,
    scene::{SCENES, differing},
};

/// Replaces the module `redis` inside a script: the n-th command fails without having run, and time stands still.
const FAILING: &str = r"
local real, count = redis, 0
local function fails()
  count = count + 1
  if count == FAIL_AT then real.call('SET', 'failed', '1') end
  return count == FAIL_AT
end
local redis = {
  error_reply = real.error_reply,
  call = function(command, ...)
    if fails() then error({ err = 'ERR injected' }) end
    if command == 'TIME' then return { '1700000000', '123456' } end
    return real.call(command, ...)
  end,
  pcall = function(...)
    if fails() then return { err = 'ERR injected' } end
    return real.pcall(...)
  end,
}
";

#[tokio::test]
async fn an_error_at_any_command_leaves_the_state_before_or_after() {
    let mut bench = Bench::start().await;
    for (scene, script) in SCENES {
        bench.set(scene).await;
        let call = bench.record(scene, script).await;

        bench.set(scene).await;
        let before = bench.dump().await;
        bench.run_failing(&call, 0).await.unwrap_or_else(|error| panic!("{scene}: {error}"));
        let after = bench.dump().await;

        let mut undone = 0;
        for n in 1.. {
            bench.set(scene).await;
            let result = bench.run_failing(&call, n).await;
            let failed: Option<String> =
                redis::cmd("GETDEL").arg("failed").query_async(&mut bench.raw).await.expect("the server answers");
            let now = bench.dump().await;
            if failed.is_none() {
                assert!(n > 1 && now == after, "{scene}: without a fault");
                break;
            }
            match result {
                Ok(_) => assert_eq!(now, after, "{scene}: went on after an error at command {n}"),
                Err(_) if now == before => undone += 1,
                Err(error) => {
                    assert!(now == after, "{scene}: command {n} failed: {error}: {}", differing(&now, &before));
                }
            }
        }
        assert!(undone > 0, "{scene}: no error was ever told");
    }
}

impl Bench {
    /// `fail_at`: the number of the command that fails; 0: none.
    pub async fn run_failing(&mut self, call: &Recorded, fail_at: u32) -> RedisResult<Value> {
        let code = format!("{}{}", FAILING.replace("FAIL_AT", &fail_at.to_string()), call.code);
        let mut command = redis::cmd("EVAL");
        command.arg(code).arg(call.keys.len()).arg(&call.keys);
        for argument in &call.arguments {
            command.arg(&argument[..]);
        }
        command.query_async(&mut self.raw).await
    }
}
