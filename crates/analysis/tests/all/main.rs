//! What snapshots tell, tested as one program: it links once.

mod any_report;

mod planted;

mod pytorch_planted;

mod recordings;

mod report_goldens;

mod support;

mod whole;
