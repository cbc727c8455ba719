//! A node that can be killed: its engine has a runtime of its own, which ends without a word.

use postrider::Engine;
use tokio::runtime::Runtime;

use super::world::World;

pub(super) struct Node {
    runtime: Option<Runtime>,
    engine: Option<Engine>,
}

impl Node {
    pub(super) async fn start(world: &World) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let starting = runtime.spawn(Engine::start(world.store.clone(), world.options()));
        let engine = starting.await.unwrap().unwrap();
        Self { runtime: Some(runtime), engine: Some(engine) }
    }

    /// Nothing is settled, given back or left; the file is opened anew.
    pub(super) async fn kill(mut self, world: &mut World) {
        self.end();
        world.reopen().await;
        world.receiver.until("its connections to close", |receiver| receiver.running_in_all() == 0).await;
    }

    fn end(&mut self) {
        drop(self.engine.take());
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}
