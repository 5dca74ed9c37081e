//! Recorded events, by number, and the driver's events behind them.
//!
//! A slot owns a driver's event for the life of the device and lends it to one recorded event after
//! the other (as PyTorch does; creating one costs as much as recording it). The number of a
//! recorded event is slot and loan: a number whose loan is over names nothing.

use super::sys::CUevent;
use crate::{DeviceError, EventId};

#[derive(Debug)]
struct Slot {
    event: CUevent,
    loan: u32,
    lent: bool,
}

#[derive(Debug, Default)]
pub(super) struct Events {
    slots: Vec<Slot>,
    /// Slots that are not lent.
    idle: Vec<u32>,
}

impl Events {
    /// Recorded events that were not destroyed.
    pub(super) fn live(&self) -> usize {
        self.slots.iter().filter(|slot| slot.lent).count()
    }

    /// Lends an event of the driver that nobody has, if there is one.
    pub(super) fn lend(&mut self) -> Option<(EventId, CUevent)> {
        let index = self.idle.pop()?;
        let slot = &mut self.slots[index as usize];
        slot.lent = true;
        Some((EventId(u64::from(slot.loan) << 32 | u64::from(index)), slot.event))
    }

    /// Adds an event of the driver, which is lent at once.
    pub(super) fn add_lent(&mut self, event: CUevent) -> EventId {
        self.slots.push(Slot { event, loan: 0, lent: true });
        EventId(self.slots.len() as u64 - 1)
    }

    /// The driver's event that `id` was lent.
    pub(super) fn get(&self, call: &'static str, id: EventId) -> Result<CUevent, DeviceError> {
        let slot = self.slots.get(index(id)).filter(|slot| slot.lent && slot.loan == loan(id));
        slot.map(|slot| slot.event)
            .ok_or_else(|| DeviceError::misuse(call, format!("no event {}", id.0)))
    }

    /// Ends the loan.
    pub(super) fn take_back(&mut self, call: &'static str, id: EventId) -> Result<(), DeviceError> {
        self.get(call, id)?;
        let slot = &mut self.slots[index(id)];
        slot.lent = false;
        // A slot whose loans have run out stays idle for ever, so that no number comes twice.
        if let Some(next) = slot.loan.checked_add(1) {
            slot.loan = next;
            self.idle.push(index(id) as u32);
        }
        Ok(())
    }

    /// Takes out every event of the driver.
    pub(super) fn drain(&mut self) -> Vec<CUevent> {
        self.idle.clear();
        self.slots.drain(..).map(|slot| slot.event).collect()
    }
}

fn index(id: EventId) -> usize {
    (id.0 & u64::from(u32::MAX)) as usize
}

fn loan(id: EventId) -> u32 {
    (id.0 >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_the_driver_is_lent_again_under_another_number() {
        let mut events = Events::default();
        assert_eq!(events.lend(), None);
        let first = events.add_lent(CUevent::NULL);
        assert_eq!((events.live(), events.lend()), (1, None));
        events.take_back("destroy_event", first).unwrap();
        let (second, _) = events.lend().unwrap();
        assert_ne!(first, second);
        assert!(events.get("query_event", first).is_err());
        assert!(events.take_back("destroy_event", first).is_err());
        assert!(events.get("query_event", second).is_ok());
        assert!(events.get("query_event", EventId(u64::MAX)).is_err());
    }

    #[test]
    fn a_slot_whose_loans_have_run_out_is_not_lent_again() {
        let mut events = Events::default();
        let first = events.add_lent(CUevent::NULL);
        events.take_back("destroy_event", first).unwrap();
        events.slots[0].loan = u32::MAX;
        let (last, _) = events.lend().unwrap();
        events.take_back("destroy_event", last).unwrap();
        assert!(events.get("query_event", last).is_err());
        assert_eq!(events.lend(), None);
        assert_eq!(events.drain().len(), 1);
    }
}
