#!/usr/bin/env python3
"""Ray Serve in the place of carillon.ray: replicas that take the time of an emulated device, one request at a time.

Run by Ray's Python: starts the application, whose replicas and proxies are detached, and ends. Each replica leaves a file
that is called by its process id in --folder.
"""
import argparse
import asyncio
import os
import pathlib

from ray import serve


@serve.deployment
class Device:
    def __init__(self, seconds, folder):
        self.seconds = seconds
        self.turn = asyncio.Lock()
        (pathlib.Path(folder) / str(os.getpid())).touch()

    async def __call__(self, request):
        body = await request.json()
        async with self.turn:
            await asyncio.sleep(self.seconds)
        return {"id": body["id"], "model_name": "tiny_mlp",
                "outputs": [{"name": "output", "datatype": "FP32", "shape": [1, 10], "data": [0.0] * 10}]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--resource", help="that each replica takes one of")
    args = parser.parse_args()
    serve.start(proxy_location="EveryNode", http_options={"host": "127.0.0.1", "port": args.port})
    resources = {args.resource: 1} if args.resource else {}
    serve.run(Device.options(num_replicas=args.replicas, ray_actor_options={"num_cpus": 1, "resources": resources}).bind(args.seconds, args.folder))


if __name__ == "__main__":
    main()
