//! Which request each row works on, and what the devices are told of it.

use ferrotune_pjrt::HostArray;

use crate::admission::Admission;
use crate::config::SamplerConfig;
use crate::request::Request;

/// The rows, and the requests that wait for one.
pub(crate) struct Rows<'a> {
    config: &'a SamplerConfig,
    requests: &'a [Request],
    /// Rows of each device.
    per_device: usize,
    /// Prompts that an admission reads on each device.
    prompts: usize,
    /// The request that each row works on.
    occupants: Vec<Option<usize>>,
    /// The first request that has not been given a row.
    next: usize,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(config: &'a SamplerConfig, devices: usize, requests: &'a [Request]) -> Self {
        Self {
            config,
            requests,
            per_device: config.batch / devices,
            prompts: config.prompts_per_admission(devices),
            occupants: vec![None; config.batch],
            next: 0,
        }
    }

    /// Rows at work and their requests.
    pub(crate) fn at_work(&self) -> Vec<(usize, usize)> {
        let rows = self.occupants.iter().enumerate();
        rows.filter_map(|(row, it)| it.map(|request| (row, request)))
            .collect()
    }

    /// Lets go of a row whose request is answered.
    pub(crate) fn free(&mut self, row: usize) {
        self.occupants[row] = None;
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting() == 0 && self.occupants.iter().all(Option::is_none)
    }

    fn waiting(&self) -> usize {
        self.requests.len() - self.next
    }

    /// Free rows of a device that make an admission worth its while: as many as it reads prompts, since it costs the same
    /// with fewer; or all that is left to admit.
    fn enough(&self) -> usize {
        self.prompts.min(self.waiting())
    }

    /// Gives free rows to the requests that wait longest; `None` if too few rows are free, or nothing waits.
    pub(crate) fn admit(&mut self) -> Option<Admission<'a>> {
        let enough = self.enough();
        if enough == 0 {
            return None;
        }
        let devices = self.occupants.chunks(self.per_device).enumerate();
        let free = |(device, rows): (usize, &[Option<usize>])| {
            let rows = rows.iter().enumerate().filter(|(_, it)| it.is_none());
            let free: Vec<usize> = rows
                .map(|(row, _)| device * self.per_device + row)
                .collect();
            // Rows are taken from the end of the list.
            let free = if free.len() >= enough {
                free
            } else {
                Vec::new()
            };
            free.into_iter().rev().collect()
        };
        let mut free: Vec<Vec<usize>> = devices.map(free).collect();
        let mut admission = Admission::new(self.config, free.len(), self.prompts);
        while let Some(request) = self.requests.get(self.next) {
            let Some(device) = admission.place(&request.prompt, &free) else {
                break;
            };
            let row = free[device].pop().expect("the device has a free row");
            admission.add(device, row, self.next, &request.prompt);
            self.occupants[row] = Some(self.next);
            self.next += 1;
        }
        (!admission.is_empty()).then_some(admission)
    }

    /// What each row is asked: limits, seeds, whether greedy, inverse temperatures, filters; and the number of finished rows
    /// of a device at which decoding pauses.
    ///
    /// A row without a request has the limit 0, with which it has finished.
    pub(crate) fn asked(&self) -> ferrotune_pjrt::Result<Vec<HostArray>> {
        let rows = self.occupants.len();
        let mut limit = vec![0_i32; rows];
        let mut seed = vec![0_u32; 2 * rows];
        let mut greedy = vec![true; rows];
        let mut inverse_temperature = vec![1_f32; rows];
        let mut top_k = vec![f32::INFINITY; rows];
        let mut top_p = vec![f32::INFINITY; rows];
        let mut min_p = vec![f32::NEG_INFINITY; rows];
        for (row, request) in self.at_work() {
            let request = &self.requests[request];
            limit[row] = request.max_new_tokens as i32;
            seed[2 * row] = request.seed as u32;
            seed[2 * row + 1] = (request.seed >> 32) as u32;
            if request.temperature > 0.0 {
                greedy[row] = false;
                inverse_temperature[row] = (1.0 / request.temperature) as f32;
                [top_k[row], top_p[row], min_p[row]] = request.filters.numbers();
            }
        }
        let pause_at = match self.enough() {
            0 => i32::MAX,
            enough => enough as i32,
        };
        Ok(vec![
            HostArray::from_slice(&[rows], &limit)?,
            HostArray::from_slice(&[rows, 2], &seed)?,
            HostArray::from_slice(&[rows], &greedy)?,
            HostArray::from_slice(&[rows], &inverse_temperature)?,
            HostArray::from_slice(&[rows], &top_k)?,
            HostArray::from_slice(&[rows], &top_p)?,
            HostArray::from_slice(&[rows], &min_p)?,
            HostArray::from_slice(&[], &[pause_at])?,
        ])
    }
}
