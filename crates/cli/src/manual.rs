//! `tonnage completions` and `tonnage man`: what shells and `man` want to know, from the same
//! definitions as the command itself.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;
use tonnage::snapshot::OutputFile;

use crate::Answer;
use crate::output::{plain, print, write_file};

/// Print a script that completes this command in a shell
///
/// bash: `tonnage completions bash > ~/.local/share/bash-completion/completions/tonnage`;
/// zsh: `tonnage completions zsh > ~/.zfunc/_tonnage`, with `~/.zfunc` in `fpath`;
/// fish: `tonnage completions fish > ~/.config/fish/completions/tonnage.fish`.
#[derive(Args)]
pub(crate) struct CompletionsArguments {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Write the manual pages
///
/// One page for the command and one for each verb, `tonnage.1`, `tonnage-replay.1` and so on.
#[derive(Args)]
pub(crate) struct ManArguments {
    /// The folder to write them to; without it the command's own page is printed
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(
    arguments: &CompletionsArguments,
    mut command: Command,
) -> anyhow::Result<Answer> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "tonnage", &mut script);
    print(&String::from_utf8(script).context("a script is text")?)?;
    Ok(Answer::Yes)
}

pub(crate) fn man(arguments: &ManArguments, mut command: Command) -> anyhow::Result<Answer> {
    command.build();
    let Some(folder) = &arguments.dir else {
        print(&String::from_utf8(page(command)?).context("a page is text")?)?;
        return Ok(Answer::Yes);
    };
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let verbs = command.get_subcommands().filter(|verb| verb.get_name() != "help");
    // A verb may have verbs of its own.
    let verbs = verbs.flat_map(|verb| {
        let name = format!("tonnage-{}", verb.get_name());
        let within = verb.get_subcommands().filter(|it| it.get_name() != "help");
        let within: Vec<_> =
            within.map(|it| (format!("{name}-{}.1", it.get_name()), it.clone())).collect();
        std::iter::once((format!("{name}.1"), verb.clone())).chain(within)
    });
    let verbs: Vec<_> = verbs.collect();
    for (file, command) in [("tonnage.1".to_owned(), command)].into_iter().chain(verbs) {
        let page = page(command)?;
        let path = folder.join(file);
        write_file(&OutputFile::at(&path)?, |out| {
            out.write_all(&page).with_context(|| format!("cannot write {}", path.display()))
        })?;
        print(&format!("wrote {}\n", plain(&path.display().to_string())))?;
    }
    Ok(Answer::Yes)
}

fn page(command: Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).context("cannot render the page")?;
    Ok(page)
}
