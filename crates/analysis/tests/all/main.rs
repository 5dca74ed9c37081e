//! What snapshots tell, tested as one program: it links once.

mod any_report;

mod failed_programs;

mod planted;

mod pytorch_planted;

mod recordings;

mod remedies;

mod replay_first;

mod report_goldens;

mod sentences;

mod support;

mod whole;
