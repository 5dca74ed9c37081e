//! What to change, with lines to copy.

use maud::{Markup, html};
use tonnage_analysis::report::{Advice, Basis, Cause, Report};

use crate::figures::bytes;
use crate::text::{capital, name, sentence};

pub(crate) fn advice(report: &Report) -> Markup {
    if report.advice.is_empty() {
        return html! {};
    }
    html! {
        section aria-labelledby="advice-h" {
            h2 #advice-h { "What to change" }
            ol.advice {
                @for it in &report.advice {
                    li {
                        p.saves { strong { (bytes(it.bytes)) } " saved, " (basis(it.basis)) }
                        div {
                            p { (sentence(&capital(&it.change))) "." }
                            @if let Some(line) = &it.line { p.where { "At " (name(line)) } }
                            @if let Some(copy) = to_copy(report, it) { pre { code { (copy) } } }
                            p.muted {
                                "Costs: " (it.cost) ". Confidence: " (it.confidence.name()) "."
                            }
                        }
                    }
                }
            }
        }
    }
}

fn basis(basis: Basis) -> &'static str {
    match basis {
        Basis::Replayed => "by replay",
        Basis::Estimated => "estimated",
    }
}

/// The change as lines for a shell or a program, where they are the same for every program.
fn to_copy(report: &Report, advice: &Advice) -> Option<String> {
    if advice.basis == Basis::Replayed {
        let best = &report.settings.as_ref()?.best;
        if best.is_empty() {
            return Some("unset PYTORCH_CUDA_ALLOC_CONF".to_owned());
        }
        return is_plain(best).then(|| format!("export PYTORCH_CUDA_ALLOC_CONF='{best}'"));
    }
    let lines = match advice.cause {
        Cause::Leak => "total += loss.item()",
        Cause::Stream => "torch.cuda.empty_cache()  # once the side stream is done",
        Cause::PrivatePool => "with torch.cuda.graph(graph, pool=largest_graph.pool()):",
        Cause::Outside => "nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv",
        _ => return None,
    };
    Some(lines.to_owned())
}

/// Whether a setting has only what settings are written with, so that a shell takes it as one word.
fn is_plain(setting: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_:,.[]>-".contains(c);
    setting.len() < 500 && setting.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_that_a_shell_takes_as_one_word_can_be_copied() {
        assert!(is_plain("expandable_segments:True,roundup_power2_divisions:[256:1,>:4]"));
        for hostile in ["x'; rm -rf ~; '", "a b", "$(id)", "a\nb", "`id`"] {
            assert!(!is_plain(hostile), "{hostile}");
        }
    }
}
