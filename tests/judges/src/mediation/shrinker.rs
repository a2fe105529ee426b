//! Finds the shortest conversation that still fails.

use super::conversation::{Conversation, Message, Step};

pub fn shrink(
    conversation: &Conversation,
    fails: &mut dyn FnMut(&Conversation) -> bool,
) -> Conversation {
    let mut shortest = conversation.clone();
    loop {
        let before = shortest.clone();
        drop_steps(&mut shortest, fails);
        for at in 0..shortest.startup.len() {
            try_with(&mut shortest, fails, |shorter| {
                if at < shorter.startup.len() {
                    shorter.startup.remove(at);
                }
            });
        }
        simplify_steps(&mut shortest, fails);
        if shortest == before {
            return shortest;
        }
    }
}

fn try_with(
    shortest: &mut Conversation,
    fails: &mut dyn FnMut(&Conversation) -> bool,
    change: impl FnOnce(&mut Conversation),
) -> bool {
    let mut shorter = shortest.clone();
    change(&mut shorter);
    let better = shorter != *shortest && fails(&shorter);
    if better {
        *shortest = shorter;
    }
    better
}

fn drop_steps(shortest: &mut Conversation, fails: &mut dyn FnMut(&Conversation) -> bool) {
    let mut length = shortest.steps.len().div_ceil(2);
    while length > 0 {
        let mut at = 0;
        while at < shortest.steps.len() {
            let end = (at + length).min(shortest.steps.len());
            if !try_with(shortest, fails, |shorter| _ = shorter.steps.drain(at..end)) {
                at += length;
            }
        }
        length /= 2;
    }
}

/// Simplifies texts, names, values, and the grouping into packets.
fn simplify_steps(shortest: &mut Conversation, fails: &mut dyn FnMut(&Conversation) -> bool) {
    for at in 0..shortest.steps.len() {
        let mut part = 0;
        while let Step::Say(Message::Query(parts)) = &shortest.steps[at]
            && parts.len() > 1
            && part < parts.len()
        {
            let dropped = try_with(shortest, fails, |shorter| {
                if let Step::Say(Message::Query(parts)) = &mut shorter.steps[at] {
                    parts.remove(part);
                }
            });
            part += usize::from(!dropped);
        }
        for simpler in simpler(&shortest.steps[at]) {
            if try_with(shortest, fails, |shorter| shorter.steps[at] = simpler) {
                break;
            }
        }
    }
}

fn simpler(step: &Step) -> Vec<Step> {
    match step {
        Step::Wait => vec![Step::Send],
        Step::Say(Message::Execute(portal, rows)) if *rows > 0 => {
            vec![Step::Say(Message::Execute(portal.clone(), 0))]
        }
        Step::Say(Message::Parse(name, sql)) if sql != b"SELECT 1" => {
            vec![Step::Say(Message::Parse(name.clone(), "SELECT 1".into()))]
        }
        Step::Say(Message::Query(parts)) if parts.len() == 1 && parts[0] != b"SELECT 1" => {
            vec![Step::Say(Message::Query(vec!["SELECT 1".into()]))]
        }
        _ => Vec::new(),
    }
}
