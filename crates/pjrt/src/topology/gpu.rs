//! GPUs that are not here. A plugin holds descriptions of them, as text that it takes back as an option.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use super::{Created, TextOption, Topology};
use crate::{Error, Plugin, Result};

/// How a description begins in the library, which holds each as a text that ends with a zero byte.
const BEGIN: &[u8] = b"gpu_device_info {";

impl Topology {
    /// `hosts` machines with as many GPUs each of one kind. Needs no devices, but NVIDIA's assembler beside the plugin; see
    /// [`Plugin::cuda`].
    ///
    /// `target` is words of the name that the plugin has for the GPU, joined by `-`, as many as it takes to tell them apart: `h200`,
    /// `h100-pcie`, `a100-sxm4-80gb`. A slice of a GPU (MIG) is meant only where `mig` is one of the words.
    ///
    /// # Errors
    /// [`Error::GpuTarget`] when no or several GPUs of the plugin have these words, when there are no machines or no GPUs, or when the
    /// plugin refuses; [`Error::Io`].
    pub fn gpu(
        plugin: &Plugin,
        target: &str,
        hosts: usize,
        devices_per_host: usize,
    ) -> Result<Topology> {
        let refused = |reason: String| Error::GpuTarget {
            target: target.to_owned(),
            reason,
        };
        if hosts == 0 || devices_per_host == 0 {
            return Err(refused(format!(
                "{hosts} machines with {devices_per_host} each are none"
            )));
        }
        let known = descriptions(plugin.path())?;
        let description = choose(target, &known).map_err(&refused)?;
        let shape = format!("1x{hosts}x{devices_per_host}");
        let options = [
            TextOption {
                name: "target_config",
                value: &description.text,
            },
            TextOption {
                name: "topology",
                value: &shape,
            },
        ];
        let created = Created {
            given: "",
            options: &options,
            device_memory: description.memory(),
        };
        let name = format!("{target}:{hosts}x{devices_per_host}");
        let topology = Topology::create(plugin, name, &created, refused)?;
        // Plugins describe GPUs of all vendors, take any, and end the process when they compile for another vendor's.
        let (own, wanted) = (&topology.0.platform_name, description.platform());
        if !own.eq_ignore_ascii_case(wanted) {
            return Err(refused(format!(
                "it needs a plugin for {wanted}, not for {own}"
            )));
        }
        Ok(topology)
    }
}

/// A GPU as the plugin describes it.
struct Description {
    text: String,
}

impl Description {
    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.text.lines().map(str::trim);
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?;
        Some(value.trim_matches('"'))
    }

    /// What people call it.
    fn name(&self) -> &str {
        self.field("device_description_str").unwrap_or_default()
    }

    fn platform(&self) -> &str {
        self.field("platform_name").unwrap_or_default()
    }

    fn memory(&self) -> Option<u64> {
        self.field("device_memory_size")?.parse().ok()
    }

    /// Whether all of these are words of its name.
    fn has(&self, words: &[String]) -> bool {
        let own = words_of(self.name());
        words.iter().all(|word| own.contains(word))
    }
}

fn words_of(name: &str) -> Vec<String> {
    let words = name.split([' ', '-']).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect()
}

fn choose<'a>(target: &str, known: &'a [Description]) -> Result<&'a Description, String> {
    let words = words_of(target);
    let slices_too = words.iter().any(|word| word == "mig");
    let slice = ["mig".to_owned()];
    let fits = |d: &&Description| d.has(&words) && (slices_too || !d.has(&slice));
    let found: Vec<&Description> = known.iter().filter(fits).collect();
    let names = |all: &mut dyn Iterator<Item = &Description>| {
        let names: Vec<&str> = all.map(Description::name).collect();
        names.join(", ")
    };
    match found[..] {
        [one] if !words.is_empty() => Ok(one),
        [] if known.is_empty() => Err("the plugin describes none".to_owned()),
        [] => Err(format!("the plugin knows {}", names(&mut known.iter()))),
        _ => Err(format!(
            "it may be any of {}",
            names(&mut found.into_iter())
        )),
    }
}

/// The descriptions in a library.
fn descriptions(path: &Path) -> Result<Vec<Description>> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    read(BufReader::with_capacity(1 << 20, file)).map_err(Error::io("read", path))
}

fn read(mut library: impl BufRead) -> std::io::Result<Vec<Description>> {
    let (mut found, mut bytes) = (Vec::new(), Vec::new());
    // The library is hundreds of megabytes, so from brace to brace, and not all of it at once.
    while library.read_until(b'{', &mut bytes)? > 0 {
        if bytes.ends_with(BEGIN) {
            let mut rest = Vec::new();
            library.read_until(0, &mut rest)?;
            rest.pop();
            let text = [BEGIN, &rest].concat();
            let description = String::from_utf8(text).map(|text| Description { text });
            found.extend(description.ok().filter(|d| !d.name().is_empty()));
        }
        bytes.clear();
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{Description, choose, read};

    fn library() -> Vec<Description> {
        let text = |name: &str, memory: u64| {
            format!(
                "# text: {{ }}\n\ngpu_device_info {{\n  device_memory_size: {memory}\n  inner {{\n    a: 1\n  }}\n}}\n\
                 platform_name: \"CUDA\"\ndevice_description_str: \"{name}\"\n\0"
            )
        };
        let all = [
            "\u{7f}ELF { { gpu_device_info {\0 not one\0{".to_owned(),
            text("NVIDIA H200 141GB HBM3e", 1 << 40),
            text("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 2),
            text("NVIDIA H100 80GB HBM3", 3),
            text("NVIDIA H100 PCIe", 4),
            text("NVIDIA A100-SXM4-80GB", 5),
            "{".to_owned(),
        ];
        read(all.concat().as_bytes()).expect("it reads from memory")
    }

    #[test]
    fn descriptions_are_found_between_other_bytes() {
        let found = library();
        let names: Vec<_> = found.iter().map(|d| (d.name(), d.memory())).collect();
        assert_eq!(names.len(), 5);
        assert_eq!(names[0], ("NVIDIA H200 141GB HBM3e", Some(1 << 40)));
        assert_eq!(names[4], ("NVIDIA A100-SXM4-80GB", Some(5)));
        assert!(found[0].text.starts_with("gpu_device_info {\n") && !found[0].text.contains('\0'));
    }

    #[test]
    fn words_choose_one_or_the_error_lists_what_there_is() {
        let found = library();
        let memory = |target| choose(target, &found).map(|d| d.memory().expect("it says"));
        assert_eq!(memory("h200"), Ok(1 << 40));
        assert_eq!(memory("H100-PCIe"), Ok(4));
        assert_eq!(memory("NVIDIA H100 80GB HBM3"), Ok(3));
        assert_eq!(memory("h100-mig"), Ok(2));
        assert_eq!(memory("a100-sxm4-80gb"), Ok(5));
        assert_eq!(
            memory("h100"),
            Err("it may be any of NVIDIA H100 80GB HBM3, NVIDIA H100 PCIe".to_owned())
        );
        for unknown in ["h20", "h100-sxm4", "mig-h200"] {
            let error = memory(unknown).expect_err("there is no such thing");
            assert!(error.starts_with("the plugin knows NVIDIA H200 141GB HBM3e, "));
        }
        assert!(memory("").is_err());
        assert_eq!(
            choose("h200", &[]).err().as_deref(),
            Some("the plugin describes none")
        );
    }
}
