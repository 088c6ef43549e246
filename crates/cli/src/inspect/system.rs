//! What a chat template says where a conversation has no system message.

use ferrotune_text::{ChatTemplate, Conversation, message};

/// A text that no template has.
const MARK: &str = "\u{2}system message\u{3}";

/// The system message that the template writes of its own accord.
///
/// Found by comparison: where a given message stands, and what stands there without one. `None` also for templates that have
/// no place for such messages.
pub(super) fn default_message(template: &ChatTemplate) -> Option<String> {
    let user = || message("user", "hello");
    let given = [message("system", MARK), user()];
    let given = template.render(&Conversation::new(&given)).ok()?.text;
    let left_out = template.render(&Conversation::new(&[user()])).ok()?.text;
    let (before, after) = given.split_once(MARK)?;
    let rest = left_out.strip_prefix(before)?;
    let default = rest.strip_suffix(after)?.trim();
    (!default.is_empty()).then(|| default.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(source: &str) -> Option<String> {
        default_message(&ChatTemplate::new(source).unwrap())
    }

    const MESSAGES: &str =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}";

    #[test]
    fn a_template_that_writes_one_is_quoted() {
        let source = format!(
            "{{% if messages[0].role != 'system' %}}<system>Be kind.</system>\n{{% endif %}}{MESSAGES}"
        );
        assert_eq!(of(&source).as_deref(), Some("Be kind."));
    }

    #[test]
    fn others_have_none() {
        assert_eq!(of(MESSAGES), None);
        assert_eq!(of("{{ messages[-1].content }}"), None);
        let refuses = format!(
            "{{% if messages[0].role == 'system' %}}{{{{ raise_exception('no') }}}}{{% endif %}}{MESSAGES}"
        );
        assert_eq!(of(&refuses), None);
        // A header that is always there, and nothing in it.
        let header = "<system>Today\n{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}</system>\
            {{ messages[-1].content }}";
        assert_eq!(of(header), None);
    }
}
