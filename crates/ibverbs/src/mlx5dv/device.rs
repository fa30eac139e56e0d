//! The open device.

use core::time::Duration;
use std::{env, os::fd::OwnedFd};

use memory::sync::Arc;
use mlx5::device::{
    CqMemory, CqRequest, QpMemory, QpRequest, SrqMemory, SrqRequest, Unreachable, check_environment,
};
use verbs::{
    Access, AddressVector, AsyncEvent, Capabilities, CreateError, DcKey, GidRoute, MemoryError,
    NicAttributes, PortAttributes, PortRoute, Registration, Transport,
};

use super::{
    abi::{Described, DvAh, DvObj, obj},
    api::Api,
    cq::Cq,
    qp::{self, Qp},
    registers::Registers,
    shared::{Cqns, Shared},
    srq::Srq,
};
use crate::{
    ah::Pd, channel::Channel, context::Context, error::OpenError, mr::Mr, nearest::Places,
    options::Config,
};

/// Inline payloads that are tried, longest first.
const INLINE_BYTES: [u16; 6] = [512, 384, 256, 128, 64, 0];

/// A port of a ConnectX, for [`mlx5::Nic::new`].
#[derive(Clone, Debug)]
pub struct Device {
    shared: Arc<Shared>,
    /// Of the addresses that are resolved.
    pd: Pd,
}

/// Opens the port that `config` names, of a device that libmlx5 drives.
///
/// # Errors
///
/// [`OpenError`].
pub fn open(config: &Config) -> Result<Device, OpenError> {
    check_environment(env::consts::ARCH, |name| env::var_os(name))
        .map_err(|error| OpenError::Environment { cause: error.to_string() })?;
    let verbs = crate::api::Api::load()?;
    let api = Api::load()?;
    // SAFETY: a device of the library's list.
    let is_ours = |device| unsafe { (api.mlx5dv_is_supported)(device) };
    let context = Context::open(verbs, config, &Places::here(), is_ours)?;
    let context = Arc::new(context);
    let probe = |error: CreateError| OpenError::Probe {
        device: context.attributes.name.clone(),
        cause: error.to_string(),
    };
    let pd = Pd::new(&context).map_err(probe)?;
    let attributes = attributes(&context.attributes);
    let shared = Shared {
        context: context.clone(),
        api,
        registers: Registers::default(),
        cqns: Cqns::default(),
        attributes,
    };
    let device = Device { shared: Arc::new(shared), pd };
    let probed = device.probe().map_err(probe)?;
    Ok(device.with(&probed))
}

/// What only a try tells.
struct Probed {
    has_dc: bool,
    sges_max: u8,
    inline_bytes_max: u16,
}

/// What the kernel tells, and what the driver and every ConnectX do.
fn attributes(told: &NicAttributes) -> NicAttributes {
    let mut attributes = told.clone();
    attributes.capabilities |= Capabilities::SOLICITED
        | Capabilities::NOP
        | Capabilities::CQ_OVERRUN_EVENT
        | Capabilities::RESPONDER_ERR;
    attributes
}

impl Device {
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The rows of the port's tables that its queue pairs are in.
    pub(super) fn rows(&self) -> mlx5::device::PortRows {
        self.shared.context.rows()
    }

    /// Makes one of each queue, so that what libmlx5 lays out in a way that the driver does not know is told now.
    fn probe(&self) -> Result<Probed, CreateError> {
        use mlx5::device::Device as _;
        let (cq, _) =
            self.create_cq(&CqRequest { log_entries: 2, cqe_bytes: 64, vector: 0 }, None)?;
        let request = |transport| QpRequest::<Self> {
            transport,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            log_send_blocks: Some(4),
            recv: None,
            scatter_to_cqe: false,
            access_key: DcKey::new(0),
        };
        self.create_qp(&self.pd, &request(Transport::Rc))?;
        if self.shared.attributes.capabilities.contains(Capabilities::SRQ) {
            self.create_srq(&self.pd, &SrqRequest { buffers: 7, log_stride: 5 })?;
        }
        let has_dc = self.create_qp(&self.pd, &request(Transport::Dci)).is_ok();
        // Of an initiator requests are longest; next are datagrams.
        let longest = request(if has_dc { Transport::Dci } else { Transport::Ud });
        let takes = |sges, inline| qp::takes(&self.shared, &self.pd.0, &longest, sges, inline);
        let sges_max = (1..=self.shared.attributes.sges_max).rev().find(|sges| takes(*sges, 0));
        let inline_bytes_max = INLINE_BYTES.into_iter().find(|inline| takes(1, *inline));
        let (sges_max, inline_bytes_max) = (sges_max.unwrap_or(1), inline_bytes_max.unwrap_or(0));
        Ok(Probed { has_dc, sges_max, inline_bytes_max })
    }

    fn with(mut self, probed: &Probed) -> Self {
        let shared = Arc::get_mut(&mut self.shared).expect("the device is not shared yet");
        let attributes = &mut shared.attributes;
        attributes.capabilities.set(Capabilities::DC, probed.has_dc);
        attributes.sges_max = probed.sges_max;
        attributes.inline_bytes_max = probed.inline_bytes_max;
        self
    }
}

// SAFETY: what libmlx5 describes is memory of this process that it shares with the adapter alone once it has
// described it, until the object is destroyed, which is when its handle is dropped; libmlx5 clears doorbell records.
unsafe impl mlx5::device::Device for Device {
    type Pd = Pd;
    type Mr = Mr;
    type Channel = Channel;
    type Cq = Cq;
    type Srq = Srq;
    type Qp = Qp;

    fn attributes(&self) -> &NicAttributes {
        &self.shared.attributes
    }

    fn port(&self) -> PortAttributes {
        self.shared.context.port_attributes()
    }

    fn address(&self) -> AddressVector {
        self.shared.context.address()
    }

    fn resolve(&self, route: &GidRoute) -> Result<[u8; 6], Unreachable> {
        let context = &self.shared.context;
        let mut attr = context.ah_attr(&AddressVector::new(PortRoute::Gid(*route)));
        // SAFETY: the domain lives; the library copies the attributes.
        let ah = unsafe { (context.api.ibv_create_ah)(self.pd.0.raw(), &raw mut attr) };
        if ah.is_null() {
            return Err(Unreachable);
        }
        let mut dv = DvAh { av: core::ptr::null_mut(), comp_mask: 0 };
        let described = Described { object: ah, out: &raw mut dv };
        let objects = &mut DvObj { ah: described, ..DvObj::EMPTY };
        let is_described = self.shared.describe(objects, obj::AH, "address handle").is_ok();
        let mac = (is_described && !dv.av.is_null()).then(|| {
            // SAFETY: the library's address vector, which lives as long as the handle.
            unsafe { (*dv.av).rmac }
        });
        // SAFETY: made above, and used by no request.
        let _ = unsafe { (context.api.ibv_destroy_ah)(ah) };
        mac.ok_or(Unreachable)
    }

    fn alloc_pd(&self) -> Result<Pd, CreateError> {
        Pd::new(&self.shared.context)
    }

    fn alloc_mr(&self, pd: &Pd, len: usize, access: Access) -> Result<Mr, MemoryError> {
        Mr::alloc(&pd.0, len, access)
    }

    fn register_memfd(
        &self,
        pd: &Pd,
        fd: OwnedFd,
        len: usize,
        access: Access,
    ) -> Result<Mr, MemoryError> {
        Mr::of_memfd(&pd.0, fd, len, access)
    }

    fn begin_register_memfd(
        &self,
        pd: &Pd,
        fd: OwnedFd,
        len: usize,
        access: Access,
    ) -> Registration<Mr> {
        Mr::begin_of_memfd(&pd.0, fd, len, access)
    }

    fn create_channel(&self) -> Result<Channel, CreateError> {
        Channel::new(&self.shared.context)
    }

    fn create_cq(
        &self,
        request: &CqRequest,
        channel: Option<&Channel>,
    ) -> Result<(Cq, CqMemory), CreateError> {
        Cq::new(&self.shared, request, channel.map(|channel| channel.0.clone()))
    }

    fn create_srq(&self, pd: &Pd, request: &SrqRequest) -> Result<(Srq, SrqMemory), CreateError> {
        Srq::new(&self.shared, &pd.0, request)
    }

    fn create_qp(
        &self,
        pd: &Pd,
        request: &QpRequest<'_, Self>,
    ) -> Result<(Qp, QpMemory), CreateError> {
        Qp::new(&self.shared, &pd.0, request)
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        loop {
            // The context takes a bounded number of events that mean nothing, and this passes over those of queues
            // that are gone, of which there are as many as are read.
            match self.shared.context.poll_event()? {
                AsyncEvent::CqOverrun(handle) => {
                    if let Some(cqn) = self.shared.cqns.number(handle) {
                        return Some(AsyncEvent::CqOverrun(cqn));
                    }
                }
                event => return Some(event),
            }
        }
    }

    /// The device works by itself.
    fn poll_timeout(&self) -> Option<Duration> {
        None
    }
}
