//! Workspaces of convolutions that the installed library does not tell without a device.
//!
//! In:  an execution plan in the library's own JSON.
//! Out: the bytes that it was measured to need on a GPU; or that nobody knows.
//!
//! Which engine a convolution gets, and with which choices, is the same with and without a device. A few engines then ask
//! the device how many of their blocks it has at once, or cuBLASLt for an algorithm; of those the table has what an H200
//! answered for the layers of common networks. `data/README.md` says how it was made.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

/// Records of a key and bytes, by ascending key.
static TABLE: &[u8] = include_bytes!("../../data/workspaces.bin");

const KEY: usize = 8;
const RECORD: usize = KEY + 8;

/// What is known of a plan's workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The library's answer holds.
    AsAnswered,
    /// So many bytes, as measured.
    Measured(u64),
    /// The engine asks the device, and this layer was not measured.
    Guessed,
}

/// Engines that ask the device, by operation, in the library's numbers.
const ASKING: [(&str, &[i64]); 3] = [
    ("CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR", &[58, 62, 67]),
    ("CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR", &[63, 67, 71]),
    ("CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR", &[17, 62, 65, 68]),
];

/// What is known of the workspace of a plan.
#[must_use]
pub fn known(plan: &str) -> Known {
    let Some(key) = key_of(plan) else { return Known::AsAnswered };
    find(TABLE, key).map_or(Known::Guessed, Known::Measured)
}

/// The key of a plan whose engine asks the device: everything that the answer depends on, the device and the library's
/// version among it.
#[must_use]
pub fn key_of(plan: &str) -> Option<u64> {
    let plan: Value = serde_json::from_str(plan).ok()?;
    let (graph, engine) = (plan.get("operationGraph")?, plan.get("engine")?);
    let node = graph.get("nodes")?.get(0)?;
    let asking = ASKING
        .iter()
        .find(|(operation, _)| node.get("operation").is_some_and(|it| it == operation))?;
    let number = engine.get("engineId")?.as_i64()?;
    if !asking.1.contains(&number) {
        return None;
    }
    let mut text = String::new();
    for part in [
        plan.get("cudnnVersion")?,
        engine.get("smVersion")?,
        plan.get("GPUProfile")?.get("multiProcessorCount")?,
        node.get("operation")?,
        node.get("mathPrec")?,
        node.get("pad")?,
        node.get("stride")?,
        node.get("dilation")?,
        engine.get("engineId")?,
    ] {
        // Writing to a string cannot fail.
        let _ = write!(text, "{part}|");
    }
    let choices: BTreeMap<_, _> = engine.get("knobChoices")?.as_object()?.iter().collect();
    for (knob, choice) in choices {
        let _ = write!(text, "{knob}{choice}|");
    }
    for tensor in graph.get("tensors")?.as_array()? {
        let _ = write!(
            text,
            "{}{}{}|",
            tensor.get("dataType")?,
            tensor.get("dim")?,
            tensor.get("stride")?
        );
    }
    Some(hash(text.as_bytes()))
}

/// The records of a table, of keys that are all different.
#[must_use]
pub fn to_table(records: &BTreeMap<u64, u64>) -> Vec<u8> {
    let record =
        |(key, bytes): (&u64, &u64)| [&key.to_le_bytes()[..], &bytes.to_le_bytes()].concat();
    records.iter().flat_map(record).collect()
}

fn find(table: &[u8], key: u64) -> Option<u64> {
    let (records, _) = table.as_chunks::<RECORD>();
    let key_at = |record: &[u8; RECORD]| {
        let mut bytes = [0; KEY];
        bytes.copy_from_slice(&record[..KEY]);
        u64::from_le_bytes(bytes)
    };
    let place = records.binary_search_by_key(&key, key_at).ok()?;
    let mut bytes = [0; RECORD - KEY];
    bytes.copy_from_slice(&records[place][KEY..]);
    Some(u64::from_le_bytes(bytes))
}

/// FNV-1a: the same on every machine and in every release.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A layer of a ResNet-50, as cuDNN 9.19 plans it for an H200.
    fn plan(engine: i64, batch: i64) -> String {
        format!(
            r#"{{"cudnnVersion":91900,"schemaVersion":4,"operationGraph":{{"finalizeMode":"CONV_FORWARD","tensors":[
            {{"name":"119","dataType":"CUDNN_DATA_FLOAT","dim":[256,64,1,1],"stride":[64,1,1,1]}},
            {{"name":"120","dataType":"CUDNN_DATA_FLOAT","dim":[{batch},64,56,56],"stride":[200704,3136,56,1]}},
            {{"name":"121","dataType":"CUDNN_DATA_FLOAT","dim":[{batch},256,56,56],"stride":[802816,3136,56,1]}}],
            "nodes":[{{"operation":"CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR",
            "mode":"CUDNN_CROSS_CORRELATION","mathPrec":"CUDNN_DATA_FLOAT","alpha":1.0,"beta":0.0,"pad":[0,0],
            "stride":[1,1],"dilation":[1,1],"X":"120","W":"119","Y":"121"}}]}},
            "GPUProfile":{{"multiProcessorCount":132}},
            "engine":{{"engineId":{engine},"smVersion":900,"knobChoices":{{"CUDNN_KNOB_TYPE_WORKSPACE":0}}}}}}"#
        )
    }

    #[test]
    fn a_layer_that_was_measured_is_found() {
        assert_eq!(known(&plan(58, 32)), Known::Measured(0));
    }

    #[test]
    fn what_was_not_measured_is_a_guess_and_engines_that_do_not_ask_answer_for_themselves() {
        assert_eq!(known(&plan(58, 31)), Known::Guessed);
        assert_eq!(known(&plan(46, 32)), Known::AsAnswered);
        for text in ["", "{}", "[1]", "{\"operationGraph\": {\"nodes\": []}, \"engine\": {}}"] {
            assert_eq!(known(text), Known::AsAnswered, "{text}");
        }
    }

    #[test]
    fn the_table_is_in_order_and_whole() {
        assert!(TABLE.len() > 100_000 && TABLE.len().is_multiple_of(RECORD));
        let keys: Vec<_> =
            TABLE.as_chunks::<RECORD>().0.iter().map(|it| it[..KEY].to_vec()).collect();
        let number =
            |key: &Vec<u8>| key.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        assert!(keys.iter().map(number).is_sorted_by(|one, next| one < next));
        let table = to_table(&[(7, 70), (3, 30), (u64::MAX, 9)].into());
        assert_eq!(
            [3, 7, u64::MAX, 4].map(|key| find(&table, key)),
            [Some(30), Some(70), Some(9), None]
        );
    }
}
