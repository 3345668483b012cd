use crate::message::MessageId;

/// Highest place in the due order that a probe asks for: passing over more costs Redis time, and among a
/// hundred messages one is good if the sink is.
const MAX_SKIP: u32 = 100;

/// Gives each probe of a partition another message: place after place of the due order, and around.
#[derive(Debug, Default)]
pub struct Rotation {
    skip: u32,
    head: Option<MessageId>,
}

impl Rotation {
    pub fn skip(&self) -> u32 {
        self.skip
    }

    /// A probe claimed `id`. The head again at a later place means that there are no more; in the second place
    /// it may also mean that another came before it.
    pub fn claimed(&mut self, id: &MessageId) {
        self.skip = match self.skip {
            0 => {
                self.head = Some(id.clone());
                1
            }
            skip if self.head.as_ref() == Some(id) => u32::from(skip != 1),
            skip if skip >= MAX_SKIP => 0,
            skip => skip + 1,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What probes get who ask for their places among `due`.
    fn probed(due: &[&str], probes: usize) -> Vec<String> {
        let mut rotation = Rotation::default();
        (0..probes)
            .map(|_| {
                let id = due.get(rotation.skip() as usize).unwrap_or(&due[0]);
                rotation.claimed(&MessageId::parse(id).unwrap());
                (*id).to_owned()
            })
            .collect()
    }

    #[test]
    fn each_probe_gets_another_message() {
        assert_eq!(probed(&["a", "b", "c"], 7), ["a", "b", "c", "a", "b", "c", "a"]);
        assert_eq!(probed(&["a", "b"], 4), ["a", "b", "a", "b"]);
        assert_eq!(probed(&["a"], 3), ["a", "a", "a"]);
    }

    #[test]
    fn a_new_head_is_seen() {
        let mut rotation = Rotation::default();
        let ids = ["b", "b", "a", "b"].map(|id| MessageId::parse(id).unwrap());
        let places = ids.each_ref().map(|id| {
            let place = rotation.skip();
            rotation.claimed(id);
            place
        });
        assert_eq!(places, [0, 1, 0, 1], "`a` came before `b` after the first probe");
    }

    #[test]
    fn places_are_bounded() {
        let ids: Vec<String> = (0..500).map(|n| format!("m{n}")).collect();
        let due: Vec<&str> = ids.iter().map(String::as_str).collect();
        assert_eq!(probed(&due, 102)[100..], ["m100", "m0"]);
    }
}
