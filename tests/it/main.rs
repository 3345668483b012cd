//! All tests that need servers, in one binary: it links once.

mod proxy;
mod receiver;
mod api;
mod http_zoo;
mod redis_list_faults;
mod sink_contract;
mod embedded;
mod support;
