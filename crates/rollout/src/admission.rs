//! What one dispatch of the admission program reads, and which rows it begins.

use ferrotune_pjrt::HostArray;

use crate::config::SamplerConfig;

/// The arrays of an admission while they are filled.
pub(crate) struct Admission<'a> {
    config: &'a SamplerConfig,
    /// Prompts that each device reads at most.
    most: usize,
    /// The prompts that each device reads. Equal prompts are read once.
    prompts: Vec<Vec<&'a [u32]>>,
    /// For each device: rows, counted from its first, and the prompt that goes there.
    pairs: Vec<Vec<(usize, usize)>>,
    /// The requests that begin, and where in the list of prompts of all devices each one's is.
    read: Vec<(usize, usize)>,
}

impl<'a> Admission<'a> {
    pub(crate) fn new(config: &'a SamplerConfig, devices: usize, most: usize) -> Self {
        Self {
            config,
            most,
            prompts: vec![Vec::new(); devices],
            pairs: vec![Vec::new(); devices],
            read: Vec::new(),
        }
    }

    /// The device to take a prompt: one that reads it anyway, else the one with the most free rows.
    pub(crate) fn place(&self, prompt: &[u32], free: &[Vec<usize>]) -> Option<usize> {
        let devices = || (0..free.len()).filter(|&device| !free[device].is_empty());
        let reads_it = devices().find(|&device| self.prompts[device].contains(&prompt));
        let has_room = || devices().filter(|&device| self.prompts[device].len() < self.most);
        reads_it.or_else(|| has_room().rev().max_by_key(|&device| free[device].len()))
    }

    /// Has a device put the prompt of a request into a row, counted over all devices.
    pub(crate) fn add(&mut self, device: usize, row: usize, request: usize, prompt: &'a [u32]) {
        let prompts = &mut self.prompts[device];
        let at = prompts.iter().position(|it| *it == prompt);
        let at = at.unwrap_or_else(|| {
            prompts.push(prompt);
            prompts.len() - 1
        });
        let rows = self.config.batch / self.prompts.len();
        self.pairs[device].push((row - device * rows, at));
        self.read.push((request, device * self.most + at));
    }

    /// The requests that begin, and the place of each one's prompt among those of all devices.
    pub(crate) fn read(&self) -> &[(usize, usize)] {
        &self.read
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.iter().all(Vec::is_empty)
    }

    /// The arrays, in the order of the layout: prompts, their first columns, numbers of pairs, rows and prompts of the pairs;
    /// for every row whether it begins, with which token, in which place.
    pub(crate) fn arrays(&self) -> ferrotune_pjrt::Result<Vec<HostArray>> {
        let (devices, width) = (self.prompts.len(), self.config.prompt_width());
        let (rows, all) = (self.config.batch, devices * self.most);
        let mut prompts = vec![self.config.pad_id as i32; all * width];
        let mut start = vec![width as i32 - 1; all];
        let mut count = vec![0_i32; devices];
        let [mut row, mut prompt] = [vec![0_i32; rows], vec![0_i32; rows]];
        let [mut token, mut position] = [vec![0_i32; rows], vec![0_i32; rows]];
        let mut admitted = vec![false; rows];
        for (device, pairs) in self.pairs.iter().enumerate() {
            for (i, tokens) in self.prompts[device].iter().enumerate() {
                let (at, begin) = (device * self.most + i, width - tokens.len());
                start[at] = begin as i32;
                let columns = prompts[at * width + begin..(at + 1) * width].iter_mut();
                columns
                    .zip(*tokens)
                    .for_each(|(column, token)| *column = *token as i32);
            }
            count[device] = pairs.len() as i32;
            let first = device * (rows / devices);
            for (i, (own_row, own_prompt)) in pairs.iter().enumerate() {
                row[first + i] = *own_row as i32;
                prompt[first + i] = *own_prompt as i32;
                let tokens = self.prompts[device][*own_prompt];
                admitted[first + own_row] = true;
                token[first + own_row] = tokens[tokens.len() - 1] as i32;
                position[first + own_row] = tokens.len() as i32 - 1;
            }
        }
        Ok(vec![
            HostArray::from_slice(&[all, width], &prompts)?,
            HostArray::from_slice(&[all], &start)?,
            HostArray::from_slice(&[devices], &count)?,
            HostArray::from_slice(&[rows], &row)?,
            HostArray::from_slice(&[rows], &prompt)?,
            HostArray::from_slice(&[rows], &admitted)?,
            HostArray::from_slice(&[rows], &token)?,
            HostArray::from_slice(&[rows], &position)?,
        ])
    }
}
