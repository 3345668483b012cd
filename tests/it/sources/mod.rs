//! Sources, on real servers, with the clients that their producers use.

mod rabbitmq;
