//! Commands on sorted sets.

use std::ops::Bound;

use super::{Answer, Arguments, SYNTAX, integer, places};
use crate::{
    keyspace::Keyspace,
    sorted_set::{Range, Score, SortedSet},
    value::Reply,
};

const NOT_A_BOUND: &str = "ERR min or max is not a float";
const NOT_A_MEMBER_BOUND: &str = "ERR min or max not valid string range item";

pub fn add(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let (key, mut rest) = (&arguments[0], &arguments[1..]);
    let (mut only_new, mut only_known, mut counts_changes) = (false, false, false);
    while let Some(option) = rest.first() {
        match option.to_ascii_uppercase().as_slice() {
            b"NX" => only_new = true,
            b"XX" => only_known = true,
            b"CH" => counts_changes = true,
            _ => break,
        }
        rest = &rest[1..];
    }
    if rest.is_empty() || rest.len() % 2 == 1 {
        return Err(SYNTAX.into());
    }
    if only_new && only_known {
        return Err("ERR XX and NX options at the same time are not compatible".into());
    }
    let pairs = rest.chunks_exact(2).map(|pair| Ok((Score::parse(&pair[0])?, pair[1].clone())));
    let pairs = pairs.collect::<Result<Vec<_>, String>>()?;
    if only_known && keyspace.read::<SortedSet>(key)?.is_none() {
        return Ok(Reply::Int(0));
    }
    let changed = keyspace.change(key, |set: &mut SortedSet| {
        let (mut added, mut changed) = (0, 0);
        for (score, member) in pairs {
            let old = set.score(&member);
            if old.is_some() && only_new || old.is_none() && only_known {
                continue;
            }
            set.insert(member, score);
            added += usize::from(old.is_none());
            changed += usize::from(old != Some(score));
        }
        if counts_changes { changed } else { added }
    })?;
    Ok(Reply::count(changed))
}

pub fn remove(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let (key, members) = (&arguments[0], &arguments[1..]);
    remove_all(keyspace, key, |set| members.iter().filter(|member| set.score(member).is_some()).cloned().collect())
}

pub fn remove_by_rank(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    for place in &arguments[1..] {
        integer(place)?;
    }
    let len = keyspace.read::<SortedSet>(&arguments[0])?.map_or(0, SortedSet::len);
    let places = places(len, &arguments[1], &arguments[2])?;
    remove_all(keyspace, &arguments[0], |set| {
        set.iter().skip(places.start).take(places.len()).map(|(member, _)| member.clone()).collect()
    })
}

pub fn remove_by_score(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let range = scores_between(&arguments[1], &arguments[2])?;
    remove_all(keyspace, &arguments[0], |set| set.by_score(range).map(|(member, _)| member.clone()).collect())
}

/// Writes nothing if there is nothing to remove.
fn remove_all(keyspace: &mut Keyspace, key: &[u8], which: impl FnOnce(&SortedSet) -> Vec<Vec<u8>>) -> Answer {
    let members = keyspace.read::<SortedSet>(key)?.map(which).unwrap_or_default();
    if members.is_empty() {
        return Ok(Reply::Int(0));
    }
    let removed = |set: &mut SortedSet| members.iter().filter(|member| set.remove(member)).count();
    Ok(Reply::count(keyspace.change(key, removed)?))
}

pub fn len(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    Ok(Reply::count(keyspace.read::<SortedSet>(&arguments[0])?.map_or(0, SortedSet::len)))
}

pub fn score(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let set = keyspace.read::<SortedSet>(&arguments[0])?;
    Ok(score_reply(set, &arguments[1]))
}

pub fn scores(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let set = keyspace.read::<SortedSet>(&arguments[0])?;
    Ok(Reply::Array(arguments[1..].iter().map(|member| score_reply(set, member)).collect()))
}

fn score_reply(set: Option<&SortedSet>, member: &[u8]) -> Reply {
    set.and_then(|set| set.score(member)).map_or(Reply::Nil, |score| Reply::Bulk(score.text()))
}

pub fn rank(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let set = keyspace.read::<SortedSet>(&arguments[0])?;
    let place = set.and_then(|set| set.iter().position(|(member, _)| *member == arguments[1]));
    Ok(place.map_or(Reply::Nil, Reply::count))
}

pub fn count(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let range = scores_between(&arguments[1], &arguments[2])?;
    let set = keyspace.read::<SortedSet>(&arguments[0])?;
    Ok(Reply::count(set.map_or(0, |set| set.by_score(range).count())))
}

pub fn count_members(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let range = members_between(&arguments[1], &arguments[2])?;
    let set = keyspace.read::<SortedSet>(&arguments[0])?;
    Ok(Reply::count(set.map_or(0, |set| set.by_member(&range).count())))
}

pub fn range(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let options = Options::parse(&arguments[3..], true)?;
    match options.by {
        By::Rank if options.limit.is_some_and(|(_, most)| most != -1) => {
            Err("ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX".into())
        }
        By::Rank => {
            let places_of = |len| places(len, &arguments[1], &arguments[2]);
            places_of(0)?;
            let Some(set) = keyspace.read::<SortedSet>(&arguments[0])? else { return Ok(Reply::Array(Vec::new())) };
            let places = places_of(set.len())?;
            Ok(options.reply(set.iter(), Some(places)))
        }
        By::Score => by_score(keyspace, &arguments[..3], &options),
        By::Member => by_member(keyspace, &arguments[..3], &options),
    }
}

pub fn range_by_score(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    by_score(keyspace, &arguments[..3], &Options::parse(&arguments[3..], false)?)
}

pub fn range_by_member(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    by_member(keyspace, &arguments[..3], &Options::parse(&arguments[3..], false)?)
}

fn by_score(keyspace: &Keyspace, arguments: Arguments, options: &Options) -> Answer {
    let (from, to) = options.ends(arguments);
    let range = scores_between(from, to)?;
    let set = keyspace.read::<SortedSet>(&arguments[0])?;
    Ok(set.map_or(Reply::Array(Vec::new()), |set| options.reply(set.by_score(range), None)))
}

fn by_member(keyspace: &Keyspace, arguments: Arguments, options: &Options) -> Answer {
    let (from, to) = options.ends(arguments);
    let range = members_between(from, to)?;
    if options.with_scores {
        return Err("ERR syntax error, WITHSCORES not supported in combination with BYLEX".into());
    }
    let set = keyspace.read::<SortedSet>(&arguments[0])?;
    Ok(set.map_or(Reply::Array(Vec::new()), |set| options.reply(set.by_member(&range), None)))
}

#[derive(PartialEq)]
enum By {
    Rank,
    Score,
    Member,
}

/// The options of a range.
struct Options {
    by: By,
    is_reversed: bool,
    with_scores: bool,
    /// Members skipped, and the maximum number; negative: all.
    limit: Option<(i64, i64)>,
}

impl Options {
    /// `can_choose`: whether the options say what the range is of.
    fn parse(mut options: Arguments, can_choose: bool) -> Result<Self, String> {
        let mut parsed = Self { by: By::Rank, is_reversed: false, with_scores: false, limit: None };
        while let Some(option) = options.first() {
            let mut taken = 1;
            match option.to_ascii_uppercase().as_slice() {
                b"WITHSCORES" => parsed.with_scores = true,
                b"LIMIT" if options.len() >= 3 => {
                    parsed.limit = Some((integer(&options[1])?, integer(&options[2])?));
                    taken = 3;
                }
                b"BYSCORE" if can_choose && parsed.by == By::Rank => parsed.by = By::Score,
                b"BYLEX" if can_choose && parsed.by == By::Rank => parsed.by = By::Member,
                b"REV" if can_choose => parsed.is_reversed = true,
                _ => return Err(SYNTAX.into()),
            }
            options = &options[taken..];
        }
        Ok(parsed)
    }

    /// The lower and the upper end of a range: with REV they are named in reverse.
    fn ends<'a>(&self, arguments: Arguments<'a>) -> (&'a [u8], &'a [u8]) {
        if self.is_reversed { (&arguments[2], &arguments[1]) } else { (&arguments[1], &arguments[2]) }
    }

    fn reply<'a>(
        &self,
        found: impl DoubleEndedIterator<Item = (&'a Vec<u8>, Score)>,
        places: Option<std::ops::Range<usize>>,
    ) -> Reply {
        let ordered: Box<dyn Iterator<Item = _>> =
            if self.is_reversed { Box::new(found.rev()) } else { Box::new(found) };
        let (skipped, most) = match (places, self.limit) {
            (Some(places), _) => (places.start, places.len()),
            (None, Some((skipped, _))) if skipped < 0 => (0, 0),
            (None, Some((skipped, most))) => {
                (usize::try_from(skipped).unwrap_or(0), usize::try_from(most).unwrap_or(usize::MAX))
            }
            (None, None) => (0, usize::MAX),
        };
        let mut reply = Vec::new();
        for (member, score) in ordered.skip(skipped).take(most) {
            reply.push(Reply::Bulk(member.clone()));
            if self.with_scores {
                reply.push(Reply::Bulk(score.text()));
            }
        }
        Reply::Array(reply)
    }
}

fn scores_between(from: &[u8], to: &[u8]) -> Result<Range<Score>, String> {
    let bound = |text: &[u8]| {
        let (text, is_excluded) = text.strip_prefix(b"(").map_or((text, false), |text| (text, true));
        let score = Score::parse_end(text).ok_or(NOT_A_BOUND)?;
        Ok::<_, String>(if is_excluded { Bound::Excluded(score) } else { Bound::Included(score) })
    };
    Ok((bound(from)?, bound(to)?))
}

fn members_between(from: &[u8], to: &[u8]) -> Result<Range<Vec<u8>>, String> {
    // The ends of all members: `-` as the upper end, or `+` as the lower one, leaves nothing.
    let nothing = (Bound::Excluded(Vec::new()), Bound::Excluded(Vec::new()));
    let bound = |text: &[u8]| match text {
        b"-" | b"+" => Ok(Bound::Unbounded),
        [b'[', member @ ..] => Ok(Bound::Included(member.to_vec())),
        [b'(', member @ ..] => Ok(Bound::Excluded(member.to_vec())),
        _ => Err(NOT_A_MEMBER_BOUND.to_owned()),
    };
    let range = (bound(from)?, bound(to)?);
    Ok(if from == b"+" || to == b"-" { nothing } else { range })
}
