//! cuSOLVER: handles. What its functions need beside is refused, by name.

use super::handles;

handles! {
    cusolverDnCreate cusolverDnCreateGesvdjInfo cusolverDnCreateParams cusolverDnCreateSyevjInfo cusolverSpCreate
}
