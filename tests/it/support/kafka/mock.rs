use std::{
    sync::{Mutex, mpsc},
    thread,
};

use rdkafka::{bindings::rd_kafka_resp_err_t, mocking::MockCluster, types::RDKafkaApiKey};

/// librdkafka's mock of a broker: creates topics by itself, and answers with the errors that it is given.
pub struct MockBroker {
    pub address: String,
    errors: mpsc::Sender<Vec<rd_kafka_resp_err_t>>,
    done: Mutex<mpsc::Receiver<()>>,
}

/// It runs on a thread of its own, because it cannot be sent between threads.
pub fn mock_broker() -> MockBroker {
    let (started, address) = mpsc::channel();
    let (errors, given) = mpsc::channel::<Vec<rd_kafka_resp_err_t>>();
    let (answered, done) = mpsc::channel();
    thread::spawn(move || {
        let cluster = MockCluster::new(1).expect("a mock cluster");
        started.send(cluster.bootstrap_servers()).expect("it is awaited");
        while let Ok(errors) = given.recv() {
            cluster.clear_request_errors(RDKafkaApiKey::Produce);
            cluster.request_errors(RDKafkaApiKey::Produce, &errors);
            answered.send(()).expect("it is awaited");
        }
    });
    MockBroker { address: address.recv().expect("it started"), errors, done: Mutex::new(done) }
}

impl MockBroker {
    /// Sets the errors that answer the next requests to produce, one each, in place of earlier ones.
    pub fn answer_with(&self, errors: &[rd_kafka_resp_err_t]) {
        self.errors.send(errors.to_vec()).expect("it runs");
        self.done.lock().unwrap().recv().expect("it runs");
    }
}
