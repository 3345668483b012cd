use rustix::process::{Pid, Signal, kill_process};

/// Sends a signal to a process of a test.
pub fn send(id: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(id).expect("a process id")).expect("not zero");
    kill_process(pid, signal).expect("it runs and is ours");
}
