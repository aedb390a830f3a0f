import logging
logging.basicConfig(level=logging.INFO)
from tests.adapter.stage import *
from tests.scripted_engine import *
from tests.adapter.conversation import append, CLOSE, kinds

async def test_flow():
    engine = ScriptedEngine(*TALK, slots=1)
    async with running_worker(engine, slots=1) as w, running_adapter(w.address) as stage, stage.client() as c:
        created = await c.begin()
        print(created)
        for i in range(5):
            await c.send(append(input_id=f"i{i}"))
        await c.expect("listen","listen","text","audio","text","audio","text","audio","listen")
        await c.send(CLOSE)
        print(await c.end())
        for e in c.events: print(str(e)[:300])
        await until(lambda: engine.session.is_closed, 1)
