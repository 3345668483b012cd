//! Flows, as an operator sees and steers them.

use super::Pause;
use crate::{
    message::{FlowLimits, MessageId, Rate},
    sink::template::FlowTemplate,
    time::UnixMillis,
};

/// A message that waits for its flow has this and its due time as score in pending (lua/include/scores.lua).
pub const PARKED: u64 = 1 << 52;

/// The flows of a route.
#[derive(Clone, Debug)]
pub struct RouteFlow {
    /// The flow of messages without one of their own. `None`: these messages are one flow.
    pub key: Option<FlowTemplate>,
    pub limits: FlowLimits,
}

/// A flow with parked messages, messages in flight or rules of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowState {
    /// Empty: the flow of messages without one.
    pub key: String,
    /// Due messages that wait for the flow.
    pub waiting: u64,
    pub in_flight: u64,
    /// When the next one can leave, as far as known; `None`: nothing waits, or it waits for the end of another message
    /// or of a pause.
    pub next_slot: Option<UnixMillis>,
    /// A message in flight, or the one that holds an ordered flow.
    pub held_by: Option<MessageId>,
    pub rules: FlowRules,
}

/// The limits and the pause that an operator set for one flow, in place of the settings of its route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowRules {
    pub rate: Option<Rate>,
    pub burst: Option<u32>,
    pub parallel: Option<u32>,
    pub pause: Option<Pause>,
}

impl FlowRules {
    /// The limits of the flow: these rules, or those of the route.
    #[must_use]
    pub fn over(&self, route: &FlowLimits) -> FlowLimits {
        let rate = self.rate.or(route.rate);
        let burst = self.burst.or_else(|| self.rate.map(Rate::burst)).unwrap_or(route.burst);
        FlowLimits { rate, burst, parallel: self.parallel.or(route.parallel), ordered: route.ordered }
    }

    /// Parses a value of `rules` (lua/include/flow.lua).
    pub(super) fn parse(text: &str) -> Self {
        let mut parts = text.splitn(4, ' ');
        let mut next = || parts.next().filter(|part| *part != "-");
        Self {
            rate: next().and_then(|rate| Rate::parse(rate).ok()),
            burst: next().and_then(|burst| burst.parse().ok()),
            parallel: next().and_then(|parallel| parallel.parse().ok()),
            pause: next().and_then(Pause::parse),
        }
    }
}

/// A change of one rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldChange<T> {
    #[default]
    Keep,
    /// For a flow, the setting of the route holds.
    Remove,
    Set(T),
}

/// A change of the rules of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowChange {
    pub rate: FieldChange<Rate>,
    pub burst: FieldChange<u32>,
    pub parallel: FieldChange<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_a_flow_stand_over_those_of_its_route() {
        let rules = FlowRules::parse("10/s 20 3 -");
        assert_eq!(
            (rules.rate, rules.burst, rules.parallel, &rules.pause),
            (Rate::parse("10/s").ok(), Some(20), Some(3), &None)
        );
        assert_eq!(FlowRules::parse("- - - -"), FlowRules::default());
        assert_eq!(FlowRules::parse(""), FlowRules::default());
        let paused = FlowRules::parse("- - - 1700000000000\nops\na note");
        let pause = paused.pause.clone().unwrap();
        assert_eq!(
            (pause.at.get(), pause.by.as_deref(), pause.note.as_deref()),
            (1_700_000_000_000, Some("ops"), Some("a note"))
        );
        let route = FlowLimits { rate: Rate::parse("5/s").ok(), burst: 7, parallel: Some(9), ordered: true };
        assert_eq!(paused.over(&route), route);
        assert_eq!(rules.over(&route), FlowLimits { rate: rules.rate, burst: 20, parallel: Some(3), ordered: true });
        // A rate of its own has its own burst, too.
        let faster = FlowRules { burst: None, ..FlowRules::parse("300/s - - -") };
        assert_eq!(faster.over(&route).burst, faster.rate.unwrap().burst());
    }
}
