//! Remedies for exchanges, queues and virtual hosts that a broker does not have.

/// `error` with the command that creates the missing exchange, queue or virtual host.
pub fn with_remedy(error: String) -> String {
    match command(&error) {
        Some(command) => format!("{error}: create it with `{command}`"),
        None => error,
    }
}

/// RabbitMQ says `no exchange 'x' in vhost '/'`, `no queue 'x' in vhost '/'`, `vhost x not found`.
fn command(error: &str) -> Option<String> {
    if let Some((_, vhost)) = error.split_once("vhost ")
        && let Some((vhost, _)) = vhost.split_once(" not found")
    {
        return Some(format!("rabbitmqctl add_vhost {}", quoted(vhost.trim_matches('\''))));
    }
    let (kind, more, rest) = match (error.split_once("no exchange '"), error.split_once("no queue '")) {
        (Some((_, rest)), _) => ("exchange", "type=direct durable=true", rest),
        (_, Some((_, rest))) => ("queue", "durable=true", rest),
        _ => return None,
    };
    let (name, rest) = rest.split_once("' in vhost '")?;
    let (vhost, _) = rest.split_once('\'')?;
    let [vhost, name] = [quoted(vhost), quoted(name)];
    Some(format!("rabbitmqadmin --vhost={vhost} declare {kind} name={name} {more}"))
}

/// Quoted for a shell, if needed.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_created_by_a_command() {
        for (error, command) in [
            (
                "NOT_FOUND - no exchange 'a b' in vhost '/'",
                "rabbitmqadmin --vhost=/ declare exchange name='a b' type=direct durable=true",
            ),
            (
                "NOT_FOUND - no queue 'in' in vhost 'shop'",
                "rabbitmqadmin --vhost=shop declare queue name=in durable=true",
            ),
            ("NOT_ALLOWED - vhost no-such not found", "rabbitmqctl add_vhost no-such"),
            ("NOT_ALLOWED - vhost 'no such' not found", "rabbitmqctl add_vhost 'no such'"),
        ] {
            assert_eq!(with_remedy(error.into()), format!("{error}: create it with `{command}`"));
        }
        let other = "ACCESS_REFUSED - access to exchange 'a' in vhost '/' refused for user 'b'";
        assert_eq!(with_remedy(other.into()), other);
    }
}
