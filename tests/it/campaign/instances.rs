//! Faults of the instances.

use std::fs;

use tokio::time::sleep;

use super::{caused::Faults, configuration::Age, kinds::Kind, nemesis::Planned, world::World};

/// SIGKILL, SIGTERM or SIGSTOP.
pub async fn signal(planned: &Planned, world: &World, faults: &Faults) {
    let Ok(mut instance) = world.instances[planned.instance].try_lock() else { return };
    let fault = faults.begin_of(planned.instance, planned.kind, &format!("for {:?}", planned.lasts));
    match planned.kind {
        Kind::Stop => {
            instance.suspend();
            sleep(planned.lasts).await;
            instance.resume();
        }
        Kind::Kill => {
            instance.kill().await;
            sleep(planned.lasts).await;
            instance.launch();
        }
        _ => {
            instance.begun().await;
            let exit = instance.terminate().await;
            assert_eq!(exit.code, Some(0), "{exit:?}\n{}", instance.log());
            sleep(planned.lasts).await;
            instance.launch();
        }
    }
    faults.end(fault);
}

/// It is stopped and started with an older configuration, and back.
pub async fn take_older(planned: &Planned, world: &World, faults: &Faults) {
    let Ok(mut instance) = world.instances[planned.instance].try_lock() else { return };
    let age = planned.random.clone().pick(&[Age::WithoutRoute, Age::OtherSettings]);
    let fault = faults.begin_of(planned.instance, planned.kind, &format!("{age:?} for {:?}", planned.lasts));
    for age in [age, Age::Current] {
        instance.begun().await;
        let exit = instance.terminate().await;
        assert_eq!(exit.code, Some(0), "{exit:?}\n{}", instance.log());
        fs::write(instance.path("punctual.yaml"), world.configurations[planned.instance].text(age)).expect("written");
        instance.launch();
        if age != Age::Current {
            sleep(planned.lasts).await;
        }
    }
    faults.end(fault);
}

/// Its standard error is not read.
pub async fn leave_unread(planned: &Planned, world: &World, faults: &Faults) {
    let Ok(_turn) = world.turn(planned.kind).try_lock() else { return };
    let Some(errors) = &world.errors[planned.instance] else { return };
    let fault = faults.begin_of(planned.instance, planned.kind, &format!("for {:?}", planned.lasts));
    errors.hold(true);
    sleep(planned.lasts).await;
    errors.hold(false);
    faults.end(fault);
}
