//! The steps of an authority that is backed up and restored, and of the epoch that reveals it.

use crate::guards::Guard;
use crate::step::Restoring;
use crate::world::{Backend, Backup, Fence, Joined, Link, ProxyLife, World};

pub(crate) fn take(fence: &Fence, world: &mut World, step: Restoring) -> Option<()> {
    match (step, world.backup) {
        (Restoring::Backup, Backup::None) => world.backup = Backup::Made(world.authority.now),
        (Restoring::Restore, Backup::Made(then)) => {
            if world.witness.joined == Joined::Some || serves_already(fence, world) {
                return None;
            }
            world.authority.now = then;
            world.backup = Backup::Restored;
        }
        (Restoring::EndAll, Backup::Restored) => end_all(fence, world)?,
        (Restoring::Recover, Backup::Restored) => recover(fence, world)?,
        _ => return None,
    }
    Some(())
}

/// A running proxy has seen more than the backup contains, and says so.
fn serves_already(fence: &Fence, world: &World) -> bool {
    world.sessions.iter().enumerate().any(|(id, session)| {
        let proxy = fence.scene.parts[id].proxy;
        session.link != Link::Away && world.proxies[proxy].life == ProxyLife::Running
    })
}

fn end_all(fence: &Fence, world: &mut World) -> Option<()> {
    if serves_already(fence, world) {
        return None;
    }
    let mut told = None;
    for session in &mut world.sessions {
        if session.backend == Backend::Alive {
            session.backend = Backend::Signalled;
            told = Some(());
        }
    }
    told
}

fn recover(fence: &Fence, world: &mut World) -> Option<()> {
    let left = !world.living().is_empty() && fence.keeps(Guard::RecoverEndsAll);
    if left || serves_already(fence, world) {
        return None;
    }
    let (witness, now) = (world.witness, &mut world.authority.now);
    if now.mark < witness.mark {
        (now.mark, now.is_drained) = (witness.mark, false);
    }
    now.epoch = now.epoch.max(witness.epoch);
    Some(())
}

pub(crate) fn raise_epoch(world: &mut World) -> Option<()> {
    if !world.is_up() || world.witness.joined == Joined::None || world.backup == Backup::Restored {
        return None;
    }
    world.authority.now.epoch += 1;
    world.witness.epoch = world.authority.now.epoch;
    world.witness.joined = Joined::None;
    Some(())
}
