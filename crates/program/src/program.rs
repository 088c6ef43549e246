//! Building, compiling and calling a program.

use ferrotune_graph::{Graph, Lowered, Mesh, Module, Output, Platform, Rules, Tensor};
use ferrotune_pjrt::{
    Arg, ArraySpec, Client, Compilation, Executable, MemoryStats, Operations, Topology,
};

use crate::dump::{Account, Dump};
use crate::group::Group;
use crate::layout::Layout;

/// What can go wrong between a traced program and its results.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call with another number of groups, or a group with another number of arrays.
    #[error("{what}: expected {expected}, found {found}")]
    Count {
        /// What was counted.
        what: String,
        /// The number that fits.
        expected: usize,
        /// The number given.
        found: usize,
    },
    /// A group of another layout than the program was traced with.
    #[error("program `{program}` takes another layout for its group `{group}`: {reason}")]
    Layout {
        /// Name of the program.
        program: String,
        /// Name of the group.
        group: String,
        /// The first difference.
        reason: String,
    },
    /// A dump that was asked for could not be written.
    #[error("the dump `{}` cannot be written: {source}; name another folder with --dump or FERROTUNE_DUMP, or none", path.display())]
    Dump {
        /// The file or folder.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A failure of the plugin: compilation, memory, execution.
    #[error(transparent)]
    Device(#[from] ferrotune_pjrt::Error),
}

/// A group of arguments, lent or given away.
#[derive(Debug)]
pub enum Argument<'a> {
    /// Read only; the caller keeps it.
    Borrowed(&'a Group),
    /// Given away; its memory may hold the results.
    Moved(Group),
}

struct InputGroup {
    name: String,
    layout: Layout,
}

/// A program while it is traced.
pub struct Builder {
    graph: Graph,
    inputs: Vec<InputGroup>,
    results: Vec<Layout>,
    outputs: Vec<Output>,
    donated: Vec<Tensor>,
}

impl Builder {
    /// An empty program for a mesh.
    ///
    /// # Panics
    /// When the name is empty.
    #[track_caller]
    pub fn new(name: &str, mesh: &Mesh, rules: &Rules) -> Self {
        Self {
            graph: Graph::new(name, mesh.clone(), rules.clone()),
            inputs: Vec::new(),
            results: Vec::new(),
            outputs: Vec::new(),
            donated: Vec::new(),
        }
    }

    /// The graph to trace into.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Adds a group of arguments and returns their tensors, in the order of the layout.
    pub fn input(&mut self, name: &str, layout: &Layout) -> Vec<Tensor> {
        self.inputs.push(InputGroup {
            name: name.to_owned(),
            layout: layout.clone(),
        });
        layout.inputs(&self.graph, name)
    }

    /// Adds a group of arguments whose memory the program may use for anything.
    pub fn input_donated(&mut self, name: &str, layout: &Layout) -> Vec<Tensor> {
        let tensors = self.input(name, layout);
        self.donated.extend(tensors.iter().cloned());
        tensors
    }

    /// Adds a group of results.
    ///
    /// # Panics
    /// When the tensors are not of the layout's types.
    #[track_caller]
    pub fn output(&mut self, layout: &Layout, tensors: &[Tensor]) {
        self.push_output(layout, tensors, None);
    }

    /// Adds a group of results that takes over the memory of a group of arguments.
    ///
    /// # Panics
    /// As [`Self::output`]; also when there is not one argument per result, or the arguments are of other types.
    #[track_caller]
    pub fn output_replacing(&mut self, layout: &Layout, tensors: &[Tensor], arguments: &[Tensor]) {
        self.push_output(layout, tensors, Some(arguments));
    }

    #[track_caller]
    fn push_output(&mut self, layout: &Layout, tensors: &[Tensor], arguments: Option<&[Tensor]>) {
        assert_eq!(
            layout.len(),
            tensors.len(),
            "a group of results has one tensor per array of its layout"
        );
        if let Some(arguments) = arguments {
            assert!(
                arguments.len() == tensors.len(),
                "results replace one argument each: there are {} results and {} arguments",
                tensors.len(),
                arguments.len()
            );
        }
        for (i, (spec, tensor)) in layout.specs().iter().zip(tensors).enumerate() {
            let ty = tensor.ty();
            assert!(
                ty.dtype == spec.dtype && ty.dims == spec.dims,
                "result `{}` is {spec} in its layout but {ty} as traced",
                spec.name
            );
            self.outputs.push(Output {
                name: spec.name.clone(),
                tensor: tensor.clone(),
                sharding: spec.sharding.clone(),
                replaces: arguments.map(|a| a[i].clone()),
            });
        }
        self.results.push(layout.clone());
    }

    /// Writes the program for one kind of device, without compiling it.
    #[track_caller]
    pub fn lower(&self, platform: Platform) -> Lowered {
        let donated: Vec<&Tensor> = self.donated.iter().collect();
        self.graph.lower(platform, &self.outputs, &donated)
    }

    /// Writes the program and, if asked for, its dump; compiles it with `compile` and completes the dump.
    #[track_caller]
    fn compile_with<T>(
        &self,
        platform: Platform,
        target: &str,
        compile: impl FnOnce(&Module) -> Result<T, ferrotune_pjrt::Error>,
        account: impl FnOnce(&T) -> Result<Account, ferrotune_pjrt::Error>,
    ) -> Result<(Module, T), Error> {
        let Lowered { module, choices } = self.lower(platform);
        let dump = Dump::begin(&module, target)?;
        if let Some(dump) = &dump {
            let results: Vec<&Tensor> = self.outputs.iter().map(|o| &o.tensor).collect();
            dump.graph(&self.graph, &results)?;
            dump.report(&self.graph, &results, &module, target, &choices)?;
        }
        let compiled = compile(&module)?;
        if let Some(dump) = &dump {
            dump.compiled(&account(&compiled)?)?;
        }
        Ok((module, compiled))
    }

    /// Compiles the program for devices that are not here, and says what it would need there.
    ///
    /// # Errors
    /// What the plugin says of the module: also that it does not fit the memory of a device.
    #[track_caller]
    pub fn compile_for(&self, topology: &Topology) -> Result<Compilation, Error> {
        let compile = |module: &Module| topology.compile(module);
        let account = |made: &Compilation| {
            Ok(Account {
                memory: made.memory(),
                operations: made.operations().cloned(),
            })
        };
        let (_, compilation) =
            self.compile_with(topology.platform(), topology.name(), compile, account)?;
        Ok(compilation)
    }

    /// Compiles the program for the client's devices.
    ///
    /// # Errors
    /// What the plugin says of the module.
    #[track_caller]
    pub fn compile(self, client: &Client) -> Result<Program, Error> {
        self.compile_as(client.platform(), client)
    }

    /// The same, but written as for devices of another kind: so the forms in which operations reach those can be run here.
    ///
    /// # Errors
    /// What the plugin says of the module.
    #[track_caller]
    pub fn compile_as(self, platform: Platform, client: &Client) -> Result<Program, Error> {
        let account = |made: &Executable| {
            Ok(Account {
                memory: made.memory(),
                operations: made.operations()?,
            })
        };
        let (module, executable) = self.compile_with(
            platform,
            client.platform_name(),
            |module| client.compile(module),
            account,
        )?;
        Ok(Program {
            module,
            executable,
            inputs: self.inputs,
            outputs: self.results,
        })
    }
}

/// A compiled program.
pub struct Program {
    module: Module,
    executable: Executable,
    inputs: Vec<InputGroup>,
    outputs: Vec<Layout>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program")
            .field("name", &self.module.name)
            .field("args", &self.module.args.len())
            .finish_non_exhaustive()
    }
}

impl Program {
    /// Name given when it was traced.
    pub fn name(&self) -> &str {
        &self.module.name
    }

    /// The StableHLO text that was compiled.
    pub fn text(&self) -> &str {
        &self.module.text
    }

    /// The layout of the group of arguments called `name`.
    pub fn input(&self, name: &str) -> Option<&Layout> {
        let group = self.inputs.iter().find(|group| group.name == name);
        group.map(|group| &group.layout)
    }

    /// Bytes on each device of the arguments that the program takes over; `usize::MAX` where they are more than can be counted.
    pub fn donated_bytes(&self) -> usize {
        let donated = self.module.args.iter().filter(|arg| arg.donated);
        let bytes = |spec: &ArraySpec| {
            let local = spec.sharding.local_dims(&self.module.mesh, &spec.dims);
            let elements = local.map_or(0, |dims| dims.iter().product::<usize>());
            elements.saturating_mul(spec.dtype.bytes())
        };
        donated
            .map(|arg| bytes(&arg.spec))
            .fold(0, usize::saturating_add)
    }

    /// Bytes that one execution needs on each device.
    pub fn memory(&self) -> MemoryStats {
        self.executable.memory()
    }

    /// What the compiler has made of the program; `None` from a plugin that does not show it. Read anew at every call.
    ///
    /// # Errors
    /// What the plugin reports instead.
    pub fn operations(&self) -> Result<Option<Operations>, Error> {
        Ok(self.executable.operations()?)
    }

    /// Whether the executable was found in the compile cache.
    pub fn from_cache(&self) -> bool {
        self.executable.from_cache()
    }

    /// Starts the program and returns its groups of results at once; they are computed asynchronously.
    ///
    /// # Errors
    /// A group of another layout, or what the plugin reports at the start. Failures during execution are reported by
    /// whoever waits for a result.
    pub fn call(&self, arguments: Vec<Argument<'_>>) -> Result<Vec<Group>, Error> {
        if arguments.len() != self.inputs.len() {
            let what = format!("groups given to program `{}`", self.name());
            return Err(Error::Count {
                what,
                expected: self.inputs.len(),
                found: arguments.len(),
            });
        }
        let mut args = Vec::with_capacity(self.module.args.len());
        for (argument, input) in arguments.into_iter().zip(&self.inputs) {
            match argument {
                Argument::Borrowed(group) => {
                    self.check(group, input)?;
                    args.extend(group.arrays().iter().map(Arg::Borrowed));
                }
                Argument::Moved(group) => {
                    self.check(&group, input)?;
                    args.extend(group.into_arrays().into_iter().map(Arg::Moved));
                }
            }
        }
        let mut results = self.executable.run(args)?.into_iter();
        let groups = self.outputs.iter().map(|layout| {
            Group::new(
                layout.clone(),
                results.by_ref().take(layout.len()).collect(),
            )
        });
        Ok(groups.collect())
    }

    fn check(&self, group: &Group, input: &InputGroup) -> Result<(), Error> {
        if *group.layout() == input.layout {
            return Ok(());
        }
        let (given, wanted) = (group.layout().specs(), input.layout.specs());
        let reason = match given.iter().zip(wanted).find(|(g, w)| g != w) {
            Some((g, w)) => format!("`{}` {g} instead of `{}` {w}", g.name, w.name),
            None => format!("{} arrays instead of {}", given.len(), wanted.len()),
        };
        Err(Error::Layout {
            program: self.name().to_owned(),
            group: input.name.clone(),
            reason,
        })
    }
}
