//! The sequence of requests of single operations, against what PyTorch 2.11 showed on an H200: requested
//! (+) and freed (-) bytes, forward and backward, from its history of allocations.

use tonnage_engine::RecordOptions;
use tonnage_events::Action;
use tonnage_tensor::autograd::{BackwardOptions, backward};
use tonnage_tensor::testing::requests;
use tonnage_tensor::{AttentionOptions, DType, Device, Reduction, Result, Tensor};

fn asked(device: &Device, from: usize) -> Vec<String> {
    let sign = |action: Action| if action == Action::Alloc { '+' } else { '-' };
    let requests = requests(device);
    let asked = requests.iter().filter(|(action, ..)| *action != Action::FreeCompleted);
    asked.skip(from).map(|(action, size, _)| format!("{}{size}", sign(*action))).collect()
}

/// Runs an operation on leaves and index tensors of these shapes, and compares both ways.
fn check(
    leaves: &[&[usize]],
    indices: &[&[usize]],
    operation: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    [forward, back]: [&str; 2],
) {
    let device = Device::dry("8 GiB").unwrap();
    let run = || -> Result<()> {
        let leaf = |shape: &&[usize]| Tensor::zeros(*shape, &device)?.requires_grad_(true);
        let index = |shape: &&[usize]| Tensor::zeros(*shape, (&device, DType::I64));
        let inputs = leaves.iter().map(leaf).chain(indices.iter().map(index));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        device.memory().record_history(Some(RecordOptions::default()));
        let results = operation(&inputs)?;
        assert_eq!(asked(&device, 0).join(" "), forward, "forward");
        let gradients = results
            .iter()
            .map(|it| Ok((it.clone(), Some(it.ones_like()?))))
            .collect::<Result<Vec<_>>>()?;
        let before = asked(&device, 0).len();
        backward(&gradients, BackwardOptions::default())?;
        assert_eq!(asked(&device, before).join(" "), back, "backward");
        Ok(())
    };
    run().unwrap();
}

const A: &[&[usize]] = &[&[100, 200]];
const TWO: &[&[usize]] = &[&[100, 200], &[100, 200]];

#[test]
fn softmax_and_activations() {
    check(A, &[], |x| Ok(vec![x[0].log_softmax(-1)?]), ["+80000", "+80000"]);
    let flipped = |x: &[Tensor]| Ok(vec![x[0].t()?.log_softmax(-1)?]);
    check(A, &[], flipped, ["+80000 +80000 -80000", "+80000 +80000 -80000"]);
    check(A, &[], |x| Ok(vec![x[0].gelu()?]), ["+80000", "+80000"]);
    check(A, &[], |x| Ok(vec![x[0].dropout(0.1, true)?]), ["+20000 +80000", "+80000 -20000"]);
}

#[test]
fn losses() {
    let square = |x: &[Tensor]| Ok(vec![x[0].mse_loss(&x[1], Reduction::Mean)?]);
    check(TWO, &[], square, ["+80000 +80000 -80000", "+80000 +80000"]);
    let cross = |x: &[Tensor]| Ok(vec![x[0].cross_entropy(&x[1])?]);
    check(A, &[&[100]], cross, ["+80000 +4 +4", "+80000 -4 +80000 -80000 -80000"]);
    let [scores, targets]: [&[usize]; 2] = [&[3, 10, 20, 30], &[3, 20, 30]];
    check(&[scores], &[targets], cross, ["+72000 +4 +4", "+72000 -4 +72000 -72000 -72000"]);
}

#[test]
fn joins() {
    let cat = |x: &[Tensor]| Ok(vec![Tensor::cat(&[&x[0], &x[1]], 1)?]);
    check(TWO, &[], cat, ["+160000", "+80000 +80000"]);
    let stack = |x: &[Tensor]| Ok(vec![Tensor::stack(&[&x[0], &x[1]], 1)?]);
    check(TWO, &[], stack, ["+160000", "+80000 +80000"]);
    check(A, &[], |x| x[0].split(50, 1), ["", "+80000"]);
    let one = |x: &[Tensor]| Ok(vec![x[0].split(50, 1)?.remove(0)]);
    check(A, &[], one, ["", "+20000 +20000 +20000 +80000 -20000 -20000 -20000"]);
}

#[test]
fn indices() {
    let gather = |x: &[Tensor]| Ok(vec![x[0].gather(1, &x[1])?]);
    check(A, &[&[100, 30]], gather, ["+12000", "+80000"]);
    let select = |x: &[Tensor]| Ok(vec![x[0].index_select(0, &x[1])?]);
    check(A, &[&[300]], select, ["+240000", "+80000"]);
    let add = |x: &[Tensor]| Ok(vec![x[0].index_add(0, &x[2], &x[1], 1)?]);
    check(&[&[100, 200], &[300, 200]], &[&[300]], add, ["+80000", "+240000 +80000"]);
    let add = |x: &[Tensor]| Ok(vec![x[0].index_add(0, &x[2], &x[1], 2.0)?]);
    let twice = ["+80000", "+240000 +240000 -240000 +80000"];
    check(&[&[100, 200], &[300, 200]], &[&[300]], add, twice);
    let add = |x: &[Tensor]| Ok(vec![x[0].scatter_add(1, &x[2], &x[1])?]);
    check(&[&[100, 200], &[100, 30]], &[&[100, 30]], add, ["+80000", "+12000 +80000"]);
}

#[test]
fn an_embedding_of_few_and_of_many_rows() {
    let embedding = |x: &[Tensor]| Ok(vec![x[1].embedding(&x[0], None)?]);
    check(&[&[1000, 200]], &[&[20, 100]], embedding, ["+1600000", "+800000"]);
    let many = "+65536 +65536 +65536 +150015 -150015 -65536 +154389504 +65536 +8 +65536 +1279 \
                -1279 -65536 +65536 +65536 +1279 -1279 +8 +72088 +27681792 -27681792 -72088 -8 \
                -65536 -65536 -8 -65536 -65536 -65536";
    check(&[&[50_257, 768]], &[&[8, 1024]], embedding, ["+25165824", many]);
}

#[test]
fn attention_over_heads_of_one_tensor() {
    let attend = |x: &[Tensor]| {
        let heads = |it: &Tensor| it.view([2, 100, 4, 64])?.transpose(1, 2);
        let heads = x[0].split(256, 2)?.iter().map(heads).collect::<Result<Vec<_>>>()?;
        let options = AttentionOptions::default().causal(true);
        Ok(vec![heads[0].scaled_dot_product_attention(&heads[1], &heads[2], options)?])
    };
    let back = "+204800 +204800 +204800 +204800 +3200 +3200 -3200 -204800 +262400 -3200 -262400 \
                -4096 +614400 -204800 -204800 -204800";
    check(&[&[2, 100, 768]], &[], attend, ["+204800 +4096", back]);
}

/// The products of conjugates: no copy on the way, as PyTorch's example shows.
#[test]
fn gram_matrices_take_the_bytes_of_the_reference() -> Result<()> {
    for (batch, start, gram) in [(1, 77_398_016, 79_446_016), (64, 593_494_016, 725_614_592)] {
        let device = Device::dry("8 GiB").unwrap();
        let h = Tensor::randn([batch, 1000, 64, 16], (&device, DType::Complex64))?;
        let before = device.memory().allocated();
        let product = h.conj()?.transpose(-1, -2)?.matmul(&h)?;
        assert_eq!(device.memory().allocated() - before, gram - start, "batch {batch}");
        assert_eq!(device.memory().max_allocated(), device.memory().allocated());
        drop(product);
    }
    Ok(())
}
