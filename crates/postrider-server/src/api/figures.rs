//! What the store counts of itself, as JSON; `/metrics` has it beside the figures of the node.

use postrider::store::Figure;

use super::answers::Common;
use super::extract::Operator;
use super::page::Page;
use super::problem::Problem;

/// What the store counts of itself, under the names that metrics have. Costs the same at any size.
#[utoipa::path(get, path = "/v1/figures", operation_id = "list_figures", tag = "system",
    responses((status = 200, description = "All of them", body = Page<Figure>), Common))]
pub(super) async fn list(operate: Operator) -> Result<Page<Figure>, Problem> {
    Ok(Page { items: operate.figures().await?, next: None })
}
