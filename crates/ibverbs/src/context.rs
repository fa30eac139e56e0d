//! An open device, and the port of it that is used.

use core::{ffi::c_int, mem::MaybeUninit, ptr::NonNull};
use std::{
    io,
    os::fd::BorrowedFd,
    sync::{Mutex, PoisonError},
};

use mlx5::device::PortRows;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use verbs::{
    AddressVector, AsyncEvent, Capabilities, Cqn, Gid, GidRoute, Lid, LinkLayer, Mtu,
    NicAttributes, PortAttributes, PortRoute, Qpn,
};

use crate::{
    abi::{self, event, port_state},
    api::Api,
    devices::List,
    error::{OpenError, check},
    forks::{self, ForkSafety},
    gid::{self, Row},
    nearest::Places,
    options::Config,
};

/// The vendor of software RoCE (Linux `drivers/infiniband/sw/rxe/rxe_param.h`).
const VENDOR_RXE: u32 = 0xff_ffff;

/// Most requests of a queue: indices of requests have 16 bits, half of which tell old from new.
pub(crate) const REQUESTS_MAX: u32 = 1 << 15;

/// Routers that packets may cross.
pub(crate) const HOP_LIMIT: u8 = 64;

/// What is called per request, as the driver says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ops {
    pub(crate) poll_cq: abi::PollCq,
    pub(crate) req_notify_cq: abi::ReqNotifyCq,
    pub(crate) post_srq_recv: abi::PostSrqRecv,
    pub(crate) post_send: abi::PostSend,
    pub(crate) post_recv: abi::PostRecv,
}

/// An open device with its chosen port; closed when the last object of it is gone.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) api: Api,
    pub(crate) ops: Ops,
    raw: NonNull<abi::Context>,
    pub(crate) attributes: NicAttributes,
    /// Software RoCE, which takes seven retries for "for ever".
    pub(crate) is_rxe: bool,
    pub(crate) forks: ForkSafety,
    pub(crate) port: u8,
    /// The row of the GID table that is asked for.
    wanted_gid: Option<u8>,
    /// The GID that was chosen when the device was opened.
    first_gid: abi::RawGid,
    /// The partition: its row may change.
    pkey: u16,
    /// As last seen, and whether addresses need a global route header.
    state: Mutex<(PortAttributes, bool)>,
}

// SAFETY: a context of libibverbs belongs to no thread.
unsafe impl Send for Context {}
// SAFETY: libibverbs locks what it changes in a context (`ibv_open_device(3)`: verbs are thread-safe).
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was opened once, and every object of it held a reference to `self`.
        let _ = unsafe { (self.api.ibv_close_device)(self.raw.as_ptr()) };
    }
}

/// A device that is open, before anything is known about its ports.
struct Opened<'a> {
    api: &'a Api,
    raw: NonNull<abi::Context>,
    name: String,
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // SAFETY: it was opened once; who keeps it open forgets this.
        let _ = unsafe { (self.api.ibv_close_device)(self.raw.as_ptr()) };
    }
}

impl Context {
    /// Opens the device and the port that `config` names, of those that `is_meant`; the nearest, if it names none.
    pub(crate) fn open(
        api: Api,
        config: &Config,
        places: &Places,
        is_meant: impl Fn(*mut abi::Device) -> bool,
    ) -> Result<Self, OpenError> {
        let forks = forks::prepare(&api);
        let list = List::new(&api)?;
        let mut devices = list.matching(&config.device)?;
        let names = devices.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
        devices.retain(|(device, _)| is_meant(*device));
        if devices.is_empty() {
            return Err(OpenError::NotMlx5 { devices: names });
        }
        places.sort(&mut devices, config.port);
        let mut first_error = None;
        for (device, name) in devices {
            let tried = Opened::new(&api, device, name)
                .and_then(|opened| opened.choose_port(config).map(|port| (opened, port)))
                .and_then(|(opened, (port, attributes))| {
                    opened.finish(config, port, &attributes, &forks)
                });
            match tried {
                Ok(context) => return Ok(context),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or(OpenError::NoDevice))
    }

    /// The completion vector that stands for `asked`, among those of the device.
    pub(crate) fn completion_vector(&self, asked: u32) -> c_int {
        // SAFETY: the context is open, and the number of its vectors never changes.
        let vectors = unsafe { self.raw.as_ref().num_comp_vectors };
        let vectors = u32::try_from(vectors).unwrap_or(0).max(1);
        c_int::try_from(asked % vectors).unwrap_or(0)
    }

    pub(crate) fn raw(&self) -> *mut abi::Context {
        self.raw.as_ptr()
    }

    /// The port as last seen.
    pub(crate) fn port_attributes(&self) -> PortAttributes {
        let seen = self.state.lock().unwrap_or_else(PoisonError::into_inner).0;
        PortAttributes { number: self.port, ..seen }
    }

    /// The rows of the port's tables that queue pairs are in.
    pub(crate) fn rows(&self) -> PortRows {
        PortRows::of(&self.port_attributes())
    }

    /// Of this port, for peers.
    pub(crate) fn address(&self) -> AddressVector {
        let (port, needs_grh) = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let global =
            GidRoute { gid: port.gid, hop_limit: HOP_LIMIT, traffic_class: 0, flow_label: 0 };
        AddressVector::new(match port.link {
            LinkLayer::Ethernet => PortRoute::Gid(global),
            LinkLayer::InfiniBand if needs_grh => PortRoute::Global(port.lid, global),
            LinkLayer::InfiniBand => PortRoute::Lid(port.lid),
        })
    }

    /// An address as libibverbs has it.
    pub(crate) fn ah_attr(&self, address: &AddressVector) -> abi::AhAttr {
        let (lid, global) = match address.route {
            PortRoute::Lid(lid) => (lid, None),
            PortRoute::Gid(global) => (Lid::new(0), Some(global)),
            PortRoute::Global(lid, global) => (lid, Some(global)),
        };
        let mut attr = abi::AhAttr::default();
        (attr.dlid, attr.sl, attr.port_num) = (lid.get(), address.service_level, self.port);
        if let Some(GidRoute { gid, hop_limit, traffic_class, flow_label }) = global {
            attr.is_global = 1;
            attr.grh = abi::GlobalRoute {
                dgid: abi::RawGid(gid.to_bytes()),
                flow_label,
                sgid_index: self.port_attributes().gid_index,
                hop_limit,
                traffic_class,
            };
        }
        attr
    }

    /// The next event that belongs to no request.
    pub(crate) fn poll_event(&self) -> Option<AsyncEvent> {
        /// Events that mean nothing to anybody here, taken in one call.
        const IGNORED_MAX: u32 = 64;
        for _ in 0..IGNORED_MAX {
            let mut event = MaybeUninit::<abi::AsyncEvent>::uninit();
            // SAFETY: the descriptor does not block, and the library fills the event if it returns 0.
            let result = unsafe { (self.api.ibv_get_async_event)(self.raw(), event.as_mut_ptr()) };
            if result != 0 {
                return None;
            }
            // SAFETY: filled, as it returned 0.
            let mut event = unsafe { event.assume_init() };
            let told = self.interpret(&event);
            // SAFETY: acknowledged once; its object is not looked at any more.
            unsafe { (self.api.ibv_ack_async_event)(&raw mut event) };
            if told.is_some() {
                return told;
            }
        }
        None
    }

    /// What an event that is not acknowledged yet says.
    fn interpret(&self, event: &abi::AsyncEvent) -> Option<AsyncEvent> {
        let told = match event.event_type {
            event::CQ_ERR => {
                // SAFETY: of a completion queue, which is not destroyed before the acknowledgement.
                let handle = unsafe { (*event.element.cast::<abi::Cq>()).handle };
                AsyncEvent::CqOverrun(Cqn::from_low_bits(handle))
            }
            event::QP_FATAL
            | event::QP_REQ_ERR
            | event::QP_ACCESS_ERR
            | event::QP_LAST_WQE_REACHED => {
                // SAFETY: of a queue pair, which is not destroyed before the acknowledgement.
                let qpn = unsafe { (*event.element.cast::<abi::Qp>()).qp_num };
                let qpn = Qpn::from_low_bits(qpn);
                match event.event_type {
                    event::QP_LAST_WQE_REACHED => AsyncEvent::LastWqeReached(qpn),
                    _ => AsyncEvent::QpFatal(qpn),
                }
            }
            event::DEVICE_FATAL => AsyncEvent::DeviceFatal,
            event::PORT_ACTIVE => AsyncEvent::PortUp,
            event::PORT_ERR => AsyncEvent::PortDown,
            // A subnet manager that has begun anew may have changed any of them.
            event::LID_CHANGE
            | event::GID_CHANGE
            | event::PKEY_CHANGE
            | event::CLIENT_REREGISTER => AsyncEvent::AddressChanged,
            // It takes no receives any more, and so neither do its queue pairs.
            event::SRQ_ERR => AsyncEvent::DeviceFatal,
            _ => return None,
        };
        if matches!(told, AsyncEvent::PortUp | AsyncEvent::AddressChanged) {
            self.refresh();
        }
        Some(told)
    }

    /// Looks at the port again; what cannot be read, or is not there now, stays as it was.
    fn refresh(&self) {
        let (api, raw, name) = (&self.api, self.raw, &self.attributes.name);
        let Ok(attributes) = query_port(api, raw, self.port) else { return };
        let before = self.port_attributes();
        let rows = gid_rows(api, raw, name, self.port, &attributes);
        let is_ethernet = attributes.link_layer == abi::LINK_LAYER_ETHERNET;
        let first = Some(self.first_gid);
        let Some(row) = gid::choose(&rows, self.wanted_gid, first, is_ethernet) else {
            return tracing::warn!(
                device = name, port = self.port, gid = %before.gid,
                "no row of the GID table can be sent from: no connection is made until one comes"
            );
        };
        let mut seen = port_attributes(&attributes, row.gid, row.index);
        let is_own = |index: &u16| query_pkey(api, raw, self.port, *index) == Some(self.pkey);
        let own = Some(before.pkey_index).filter(is_own);
        seen.0.pkey_index =
            own.or_else(|| (0..attributes.pkey_tbl_len).find(is_own)).unwrap_or(before.pkey_index);
        if (seen.0.gid, seen.0.gid_index) != (before.gid, before.gid_index) {
            tracing::info!(device = name, port = self.port, gid = %seen.0.gid, row = row.index, "GID");
        }
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }
}

impl<'a> Opened<'a> {
    fn new(api: &'a Api, device: *mut abi::Device, name: &str) -> Result<Self, OpenError> {
        // SAFETY: a device of the list, which is not freed yet.
        let raw = unsafe { (api.ibv_open_device)(device) };
        let failed =
            || OpenError::Device { device: name.to_owned(), cause: io::Error::last_os_error() };
        let raw = NonNull::new(raw).ok_or_else(failed)?;
        Ok(Self { api, raw, name: name.to_owned() })
    }

    fn query(&self, what: &'static str) -> impl Fn(io::Error) -> OpenError + '_ {
        move |cause| OpenError::Query { device: self.name.clone(), what, cause }
    }

    fn device_attributes(&self) -> Result<abi::DeviceAttr, OpenError> {
        let mut attr = MaybeUninit::<abi::DeviceAttr>::zeroed();
        // SAFETY: the context is open, and the library fills the whole structure.
        let result = unsafe { (self.api.ibv_query_device)(self.raw.as_ptr(), attr.as_mut_ptr()) };
        check(result).map_err(self.query("attributes"))?;
        // SAFETY: filled, and zeros before that are a value, too.
        Ok(unsafe { attr.assume_init() })
    }

    /// The port that is asked for, or the first that is up.
    fn choose_port(&self, config: &Config) -> Result<(u8, abi::PortAttr), OpenError> {
        let ports = self.device_attributes()?.phys_port_cnt;
        if config.port > ports {
            return Err(OpenError::NoPort { device: self.name.clone(), port: config.port, ports });
        }
        let tried = if config.port == 0 { 1..=ports } else { config.port..=config.port };
        let mut first_down = None;
        for port in tried {
            let attributes = query_port(self.api, self.raw, port)
                .map_err(self.query("the attributes of a port"))?;
            match down(attributes.state) {
                None => return Ok((port, attributes)),
                Some((state, remedy)) => {
                    let device = self.name.clone();
                    let error = OpenError::PortDown { device, port, state, remedy };
                    first_down = first_down.or(Some(error));
                }
            }
        }
        Err(first_down.unwrap_or(OpenError::NoPort { device: self.name.clone(), port: 1, ports }))
    }

    /// The row of the GID table that packets leave from.
    fn choose_gid(
        &self,
        config: &Config,
        port: u8,
        attributes: &abi::PortAttr,
    ) -> Result<(u8, abi::RawGid), OpenError> {
        let device = || self.name.clone();
        let rows = gid_rows(self.api, self.raw, &self.name, port, attributes);
        let is_ethernet = attributes.link_layer == abi::LINK_LAYER_ETHERNET;
        match (gid::choose(&rows, config.gid_index, None, is_ethernet), config.gid_index) {
            (Some(row), _) => Ok((row.index, row.gid)),
            (None, Some(index)) => {
                let known = gid::indices(&rows);
                Err(OpenError::EmptyGid { device: device(), port, index, known })
            }
            (None, None) if is_ethernet => Err(OpenError::NoGid { device: device(), port }),
            (None, None) => Ok(Default::default()),
        }
    }

    /// Refuses a partition in which this port reaches nobody, or only some.
    fn check_pkey(
        &self,
        config: &Config,
        port: u8,
        attributes: &abi::PortAttr,
    ) -> Result<u16, OpenError> {
        /// The bit of full members.
        const FULL: u16 = 0x8000;
        let (device, index) = (self.name.clone(), config.pkey_index);
        let is_row = index < attributes.pkey_tbl_len.max(1);
        match is_row.then(|| query_pkey(self.api, self.raw, port, index)).flatten() {
            Some(pkey) if pkey & FULL != 0 => Ok(pkey),
            Some(pkey) if pkey != 0 => Err(OpenError::LimitedPkey { device, port, pkey }),
            _ => Err(OpenError::NoPkey { device, port, index }),
        }
    }

    fn ops(&self) -> Result<Ops, OpenError> {
        // SAFETY: the context is open, so its table is filled, and does not change any more.
        let ops = unsafe { &self.raw.as_ref().ops };
        let missing = |function| OpenError::Driver { device: self.name.clone(), function };
        Ok(Ops {
            poll_cq: ops.poll_cq.ok_or_else(|| missing("poll_cq"))?,
            req_notify_cq: ops.req_notify_cq.ok_or_else(|| missing("req_notify_cq"))?,
            post_srq_recv: ops.post_srq_recv.ok_or_else(|| missing("post_srq_recv"))?,
            post_send: ops.post_send.ok_or_else(|| missing("post_send"))?,
            post_recv: ops.post_recv.ok_or_else(|| missing("post_recv"))?,
        })
    }

    /// Lets reads of events return at once.
    fn unblock_events(&self) -> Result<(), OpenError> {
        // SAFETY: the context is open.
        let number = unsafe { self.raw.as_ref() }.async_fd;
        // SAFETY: open as long as the context is.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        unblock(fd).map_err(self.query("the descriptor of events"))
    }

    fn finish(
        self,
        config: &Config,
        port: u8,
        attributes: &abi::PortAttr,
        forks: &ForkSafety,
    ) -> Result<Context, OpenError> {
        let pkey = self.check_pkey(config, port, attributes)?;
        let (gid_index, gid) = self.choose_gid(config, port, attributes)?;
        let ops = self.ops()?;
        self.unblock_events()?;
        let device = self.device_attributes()?;
        let (seen, needs_grh) = port_attributes(attributes, gid, gid_index);
        let context = Context {
            api: *self.api,
            ops,
            raw: self.raw,
            attributes: nic_attributes(&self.name, &device, attributes),
            is_rxe: device.vendor_id == VENDOR_RXE,
            forks: forks.clone(),
            port,
            wanted_gid: config.gid_index,
            first_gid: gid,
            pkey,
            state: Mutex::new((
                PortAttributes { pkey_index: config.pkey_index, ..seen },
                needs_grh,
            )),
        };
        // The context closes it now.
        core::mem::forget(self);
        Ok(context)
    }
}

/// Lets reads of a descriptor return at once.
pub(crate) fn unblock(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = fcntl_getfl(fd)?;
    Ok(fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}

/// A state in which a port carries no traffic, and its remedy.
fn down(state: i32) -> Option<(&'static str, &'static str)> {
    let link = "bring its network interface up, or look at the cable";
    let subnet = "it waits for the subnet manager of its InfiniBand subnet (opensm)";
    match state {
        port_state::ACTIVE | port_state::ACTIVE_DEFER => None,
        port_state::DOWN => Some(("down", link)),
        port_state::INIT => Some(("initialising", subnet)),
        port_state::ARMED => Some(("armed", subnet)),
        _ => Some(("in no known state", link)),
    }
}

fn query_port(api: &Api, raw: NonNull<abi::Context>, port: u8) -> io::Result<abi::PortAttr> {
    let mut attr = abi::PortAttr::default();
    // SAFETY: the context is open, and the structure is as long as the library's.
    check(unsafe { (api.ibv_query_port)(raw.as_ptr(), port, &raw mut attr) })?;
    Ok(attr)
}

fn query_gid(
    api: &Api,
    raw: NonNull<abi::Context>,
    port: u8,
    index: u8,
) -> io::Result<abi::RawGid> {
    let mut gid = abi::RawGid::default();
    // SAFETY: the context is open; the library writes one GID.
    check(unsafe { (api.ibv_query_gid)(raw.as_ptr(), port, index.into(), &raw mut gid) })?;
    Ok(gid)
}

/// The key in a row of the P_Key table.
fn query_pkey(api: &Api, raw: NonNull<abi::Context>, port: u8, index: u16) -> Option<u16> {
    let mut pkey = 0;
    // SAFETY: the context is open; the library writes one key.
    let result = unsafe { (api.ibv_query_pkey)(raw.as_ptr(), port, index.into(), &raw mut pkey) };
    (result == 0).then_some(u16::from_be(pkey))
}

/// Rows of the GID table that are in use.
fn gid_rows(
    api: &Api,
    raw: NonNull<abi::Context>,
    device: &str,
    port: u8,
    attributes: &abi::PortAttr,
) -> Vec<Row> {
    let last = u8::try_from(attributes.gid_tbl_len.max(1) - 1).unwrap_or(u8::MAX);
    let row = |index| {
        let gid = query_gid(api, raw, port, index).ok().filter(|gid| *gid != Default::default())?;
        let is_v2 = gid::is_v2(device, port, index);
        Some(Row { index, gid, is_v2, is_here: gid::is_here(device, port, index) })
    };
    (0..=last).filter_map(row).collect()
}

fn port_attributes(
    attributes: &abi::PortAttr,
    abi::RawGid(gid): abi::RawGid,
    gid_index: u8,
) -> (PortAttributes, bool) {
    let is_ethernet = attributes.link_layer == abi::LINK_LAYER_ETHERNET;
    let mtu = match attributes.active_mtu {
        2 => Mtu::B512,
        3 => Mtu::B1024,
        4 => Mtu::B2048,
        5.. => Mtu::B4096,
        _ => Mtu::B256,
    };
    // Which port and partition it is, the context knows.
    let port = PortAttributes {
        number: 0,
        pkey_index: 0,
        link: if is_ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand },
        lid: Lid::new(if is_ethernet { 0 } else { attributes.lid }),
        gid: Gid::new(gid),
        gid_index,
        mtu,
    };
    (port, attributes.flags & abi::PORT_GRH_REQUIRED != 0)
}

fn nic_attributes(name: &str, device: &abi::DeviceAttr, port: &abi::PortAttr) -> NicAttributes {
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let byte = |number: i32| u8::try_from(number.clamp(0, 255)).unwrap_or(0);
    let mut capabilities = Capabilities::UD | Capabilities::CQ_ACCOUNTING | Capabilities::LOOPBACK;
    capabilities.set(Capabilities::SRQ, device.max_srq > 0 && device.max_srq_wr > 0);
    capabilities.set(Capabilities::ATOMICS, device.atomic_cap > 0);
    let sges = match device.max_sge_rd {
        0 => device.max_sge,
        for_reads => device.max_sge.min(for_reads),
    };
    NicAttributes {
        name: name.to_owned(),
        capabilities,
        cqes_max: count(device.max_cqe),
        requests_max: count(device.max_qp_wr).min(REQUESTS_MAX),
        srq_entries_max: if device.max_srq > 0 { count(device.max_srq_wr) } else { 0 }
            .min(REQUESTS_MAX),
        srq_sges_max: byte(device.max_srq_sge),
        sges_max: byte(sges),
        // Found out by `nic::open`.
        inline_bytes_max: 0,
        cqe_payload_bytes_max: 0,
        message_bytes_max: port.max_msg_sz,
        reads_max: byte(device.max_qp_rd_atom.min(device.max_qp_init_rd_atom)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_without_traffic_have_a_remedy() {
        assert_eq!(down(port_state::ACTIVE), None);
        assert!(down(port_state::DOWN).unwrap().1.contains("interface"));
        assert!(down(port_state::INIT).unwrap().1.contains("opensm"));
        assert!(down(0).is_some());
    }

    #[test]
    fn ports_are_addressed_as_their_link_layer_does() {
        let attributes =
            abi::PortAttr { lid: 7, link_layer: 1, active_mtu: 3, ..Default::default() };
        let (port, needs_grh) = port_attributes(&attributes, abi::RawGid([1; 16]), 2);
        assert_eq!((port.link, port.lid), (LinkLayer::InfiniBand, Lid::new(7)));
        assert_eq!((port.mtu, port.gid_index, needs_grh), (Mtu::B1024, 2, false));
        let attributes = abi::PortAttr { link_layer: 2, flags: 1, ..attributes };
        let (port, needs_grh) = port_attributes(&attributes, abi::RawGid([1; 16]), 2);
        assert_eq!((port.link, port.lid, needs_grh), (LinkLayer::Ethernet, Lid::new(0), true));
    }
}
