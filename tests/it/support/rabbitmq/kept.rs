//! A node that outlives the processes of tests. `tests/mutants/rust.py` starts hundreds of them; a node takes 5 s.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use super::RabbitMq;

/// The file with its four ports.
const PORTS: &str = "ports";
/// Deletes everything that tests have made in the node.
const RESET: &str = r#"
    Users = [proplists:get_value(user, User) || User <- rabbit_auth_backend_internal:list_users()],
    [rabbit_auth_backend_internal:delete_user(User, <<"it">>) || User <- Users, User =/= <<"guest">>],
    rabbit_vhost:delete(<<"/">>, <<"it">>),
    rabbit_vhost:add(<<"/">>, <<"it">>),
    application:set_env(rabbit, consumer_timeout, 1800000),
    ssl:clear_pem_cache(),
    rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"/">>, <<".*">>, <<".*">>, <<".*">>, <<"it">>)"#;

impl RabbitMq {
    /// The node of this directory. The first call starts it; later ones, in other processes, empty it. One process uses
    /// it at a time. To stop it, end the processes in `node.pid` and `epmd.pid`.
    pub(super) async fn kept(directory: PathBuf) -> Self {
        let known = fs::read_to_string(directory.join(PORTS)).ok();
        fs::create_dir_all(&directory).expect("a directory");
        let mut server = Self::within(directory);
        if let Some(known) = known {
            let ports: Vec<u16> = known.split_whitespace().map(|port| port.parse().expect("a port")).collect();
            server.ports = ports.try_into().expect("four ports");
            server.eval(&RESET.replace('\n', " ")).await;
        } else {
            server.start_kept().await;
        }
        server.answers().await;
        server
    }

    #[expect(clippy::zombie_processes, reason = "both outlive this process")]
    async fn start_kept(&mut self) {
        let epmd = Command::new("epmd")
            .args(["-address", "127.0.0.1", "-port", &self.epmd_port().to_string()])
            .current_dir(&self.directory)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("epmd is installed");
        fs::write(self.directory.join("epmd.pid"), epmd.id().to_string()).expect("written");
        self.start_first("", "").await;
        fs::write(self.directory.join(PORTS), self.ports.map(|port| port.to_string()).join(" ")).expect("written");
    }
}
