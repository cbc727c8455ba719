use crate::failure::Failure;
use crate::output::Output;
use crate::store_url::StoreUrl;
#[derive(clap::Args)]
pub(crate) struct BenchArgs {}
pub(crate) async fn run(_: BenchArgs, _: Option<StoreUrl>, _: Output) -> Result<(), Failure> {
    Ok(())
}
pub(crate) async fn receiver() -> Result<(), Failure> {
    Ok(())
}
