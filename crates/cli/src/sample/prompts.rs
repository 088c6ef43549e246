//! What is to be continued: texts, or messages of a chat, from the command line or a file.

use std::path::Path;

use anyhow::anyhow;
use ferrotune_text::{Conversation, Tokenizer, json_line, message};
use serde_json::Value;

use crate::args::SampleArgs;
use crate::failure::{Failure, OrFail};

/// Bad lines that are shown before the rest is only counted.
const SHOWN: usize = 20;

/// Where prompts become tokens.
struct Words<'a> {
    tokenizer: &'a Tokenizer,
    vocab_size: usize,
    /// Whether a text is what a user says in a chat.
    chat: bool,
}

/// The ids of every prompt: each has some, all of them the model's.
///
/// All bad lines of a file are refused together.
pub(crate) fn read(
    args: &SampleArgs,
    tokenizer: &Tokenizer,
    vocab_size: usize,
) -> Result<Vec<Vec<u32>>, Failure> {
    let words = Words {
        tokenizer,
        vocab_size,
        chat: args.chat,
    };
    match &args.prompts {
        Some(path) => of_file(path, &words),
        None => {
            let prompt = Value::from(args.prompt.clone().unwrap_or_default());
            let ids = words.prompt(&prompt).map_err(|why| anyhow!(why));
            Ok(vec![ids.or_refuse()?])
        }
    }
}

fn of_file(path: &Path, words: &Words<'_>) -> Result<Vec<Vec<u32>>, Failure> {
    let bytes = crate::input_file::read(path, "the prompts").or_refuse()?;
    let (mut prompts, mut bad) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        if json_line::bare(line).is_empty() {
            continue;
        }
        match words.line(line) {
            Ok(ids) => prompts.push(ids),
            Err(why) => bad.push(anyhow!("{}:{number}: {why}", path.display())),
        }
    }
    if bad.len() > SHOWN {
        let rest = bad.split_off(SHOWN).len();
        bad.push(anyhow!("and {rest} more bad lines in {}", path.display()));
    }
    if !bad.is_empty() {
        return Err(Failure::Refused(bad));
    }
    if prompts.is_empty() {
        return Err(Failure::refused(anyhow!(
            "{} holds no prompts: put {{\"prompt\": \"...\"}} or {{\"messages\": [...]}} on each line",
            path.display()
        )));
    }
    Ok(prompts)
}

/// Who may speak in a chat: what templates know. Of another role most would leave the message out without a word.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

fn check_messages(messages: &[Value]) -> Result<(), String> {
    if messages.is_empty() {
        return Err("\"messages\" is empty: give at least what the user says".to_owned());
    }
    for (number, message) in (1..).zip(messages) {
        check_message(message).map_err(|why| format!("message {number} {why}"))?;
    }
    Ok(())
}

fn check_message(message: &Value) -> Result<(), String> {
    let Some(role) = message["role"].as_str() else {
        return Err("must be an object with \"role\" and \"content\"".to_owned());
    };
    if !ROLES.contains(&role) {
        let near = ferrotune_recipe::nearest(role, ROLES.iter().copied());
        let near = near.map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
        return Err(format!(
            "has the unknown role {role:?}: the roles are {}{near}",
            ROLES.join(", ")
        ));
    }
    let calls = role == "assistant" && message["tool_calls"].is_array();
    match &message["content"] {
        Value::String(text) if text.trim().is_empty() && role == "user" => {
            Err("of the user is empty".to_owned())
        }
        Value::String(_) => Ok(()),
        Value::Array(parts) if !parts.is_empty() => Ok(()),
        Value::Null if calls => Ok(()),
        Value::Null => Err("has no \"content\"".to_owned()),
        _ => Err("must have a text or a list of parts as its \"content\"".to_owned()),
    }
}

impl Words<'_> {
    /// The ids of one line of a file.
    fn line(&self, line: &[u8]) -> Result<Vec<u32>, String> {
        let object = json_line::value(line)?;
        match (object.get("prompt"), object.get("messages")) {
            (Some(prompt), None) => self.prompt(prompt),
            (None, Some(Value::Array(messages))) => {
                check_messages(messages)?;
                self.chat(messages)
            }
            (None, Some(_)) => Err("\"messages\" must be a list".to_owned()),
            _ => Err("must be an object with either \"prompt\" or \"messages\"".to_owned()),
        }
    }

    fn prompt(&self, text: &Value) -> Result<Vec<u32>, String> {
        let text = text.as_str().ok_or("\"prompt\" must be a text")?;
        if self.chat {
            self.chat(&[message("user", text)])
        } else {
            self.encode(text, true)
        }
    }

    /// The conversation as the model's template writes it, with the head of the answer that is wanted.
    fn chat(&self, messages: &[Value]) -> Result<Vec<u32>, String> {
        let template = self.tokenizer.chat_template().ok_or(
            "the model's folder has no chat template: write the whole prompt as a text, without --chat",
        )?;
        let rendered = template.render(&Conversation::prompt(messages));
        // The template writes whatever begins a text.
        self.encode(&rendered.map_err(|error| error.to_string())?.text, false)
    }

    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        let encoded = self.tokenizer.encode(text, add_special);
        let mut ids = encoded.map_err(|error| error.to_string())?;
        if ids.is_empty() {
            ids.extend(self.tokenizer.bos_id());
        }
        if ids.is_empty() {
            return Err(
                "the prompt has no tokens, and the tokenizer has none that begins a text: give a prompt that is not empty"
                    .to_owned(),
            );
        }
        match ids.iter().find(|&&id| id as usize >= self.vocab_size) {
            None => Ok(ids),
            Some(id) => Err(format!(
                "the prompt has token id {id}, outside of the model's vocabulary of {}: \
                 put the tokenizer that belongs to the model into its folder",
                self.vocab_size
            )),
        }
    }
}
