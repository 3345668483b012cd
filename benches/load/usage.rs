//! Resource usage of Redis and processes.

use std::fs;

use redis::aio::MultiplexedConnection;

use crate::Result;

/// Clock ticks per second in `/proc/PID/stat`.
const TICKS: f64 = 100.0;

pub async fn connect(url: &str) -> Result<MultiplexedConnection> {
    // A blocking read has no timeout.
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

#[derive(Clone, Copy)]
pub struct Usage {
    /// CPU seconds.
    pub redis: f64,
    pub process: f64,
    /// Number of EVALSHA and EVAL calls.
    pub scripts: u64,
}

impl Usage {
    /// Usage so far of Redis and the process `pid`.
    pub async fn read(redis: &mut MultiplexedConnection, pid: Option<u32>) -> Result<Self> {
        let info: String = redis::cmd("INFO").arg("cpu").arg("commandstats").query_async(redis).await?;
        let (mut cpu, mut scripts) = (0.0, 0);
        for (name, value) in info.lines().filter_map(|line| line.split_once(':')) {
            match name {
                "used_cpu_user" | "used_cpu_sys" => cpu += value.parse::<f64>()?,
                "cmdstat_evalsha" | "cmdstat_eval" => {
                    let calls = value.split(',').find_map(|part| part.strip_prefix("calls=")).unwrap_or("0");
                    scripts += calls.parse::<u64>()?;
                }
                _ => {}
            }
        }
        Ok(Self { redis: cpu, process: pid.map_or(Ok(0.0), of_process)?, scripts })
    }

    /// Usage so far of all servers together and the process `pid`.
    pub async fn of_all(servers: &mut [MultiplexedConnection], pid: u32) -> Result<Self> {
        let mut all = Self { redis: 0.0, process: of_process(pid)?, scripts: 0 };
        for server in servers {
            let one = Self::read(server, None).await?;
            (all.redis, all.scripts) = (all.redis + one.redis, all.scripts + one.scripts);
        }
        Ok(all)
    }

    pub fn since(self, before: Self) -> Self {
        Self {
            redis: self.redis - before.redis,
            process: self.process - before.process,
            scripts: self.scripts - before.scripts,
        }
    }
}

/// CPU seconds that a process has used.
pub fn of_process(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Fields after the name, which can contain spaces: the first is the state, the twelfth utime, the thirteenth stime.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / TICKS)
}

/// Resets the peak of resident memory.
pub fn reset_peak(pid: u32) -> Result<()> {
    Ok(fs::write(format!("/proc/{pid}/clear_refs"), "5")?)
}

/// Peak of resident memory, MiB.
pub fn peak(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim_end_matches("kB").trim().parse::<f64>()? / 1024.0)
}
