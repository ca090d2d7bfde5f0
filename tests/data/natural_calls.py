# Calls as people write them, at most four lines each; tests/test_calls.py runs and type-checks them.
# ---
done = ropeconv.apply("./Llama-2-7b-hf", yarn=4)
print(done)
# ---
ropeconv.apply(Path("Llama-2-7b-hf"), linear=2, out=Path("longer"))
# ---
ropeconv.apply("Llama-2-7b-hf", yarn="256", out="by-length")
# ---
ropeconv.apply("Llama-2-7b-hf", context="256", out="only-a-length")
# ---
ropeconv.apply("Llama-2-7b-hf", mixed=4, mixed_exponent=0.75, runtime=["transformers", "vllm"])
# ---
ropeconv.apply("Llama-2-7b-hf", theta=1e6, context=512, out="theta", force=True)
# ---
ropeconv.apply("Llama-2-7b-hf", inv_freq=np.geomspace(1, 1e-5, 32), context=256, out="numpy")
# ---
ropeconv.apply("Llama-2-7b-hf", inv_freq=torch.logspace(0, -5, 32), context=256, out="torch")
# ---
ropeconv.apply("Llama-2-7b-hf", inv_freq=[10 ** (-i / 8) for i in range(32)], out="list")
# ---
np.savetxt("numbers.txt", np.geomspace(1, 1e-5, 32))
ropeconv.apply("Llama-2-7b-hf", inv_freq="numbers.txt", out="text")
# ---
ropeconv.apply("Llama-2-7b-hf", yarn=4, to="gguf", outtype="q8_0", out="model-q8.gguf")
# ---
done = ropeconv.apply("Llama-2-7b-hf", yarn=4, validate="cpu", out="validated")
assert done.validation and done.validation.agrees
# ---
recipe = ropeconv.Recipe(ropeconv.METHODS["yarn"](4.0), attention_factor=1.2)
ropeconv.apply("Llama-2-7b-hf", recipe, out="a-recipe")
# ---
plan = ropeconv.plan("Llama-2-7b-hf", yarn=4, out="planned")
print(plan.bytes, plan.warnings, ropeconv.apply(plan).path)
# ---
for verdict in ropeconv.plan("Llama-2-7b-hf", yarn=4).result.verdicts:
    print(verdict.display_name, verdict.status, verdict.reason)
# ---
for factor in (2, 4):
    ropeconv.apply("Llama-2-7b-hf", ntk=factor, out=f"ntk-{factor}", remember=False)
# ---
info = ropeconv.inspect("Llama-2-7b-hf")
print(info.context, info.family, info.rope_type, info.rope_theta)
# ---
info = ropeconv.inspect("Llama-2-7b-hf")
print(json.dumps(info.to_dict())[:80])
# ---
print(ropeconv.inspect("Llama-2-7b-hf").to_pandas().head())
# ---
source = ropeconv.open_source("Llama-2-7b-hf")
spec = ropeconv.inspect(source).spec
print(ropeconv.METHODS["linear"](4.0).schedule(spec).inv_freq)
# ---
model = AutoModelForCausalLM.from_pretrained("Llama-2-7b-hf")
undo = ropeconv.patch(model, yarn=4)
undo()
# ---
model = AutoModelForCausalLM.from_pretrained("Llama-2-7b-hf")
print(ropeconv.inspect(model))
# ---
done = ropeconv.apply("Llama-2-7b-hf", yarn=4, out="checked")
result = ropeconv.validate(done, device="cpu")
print(result.agrees, result.sentence)
# ---
ropeconv.apply("Llama-2-7b-hf", yarn=4, out="with-text")
result = ropeconv.validate("with-text", "Llama-2-7b-hf", text="the cat sat on the mat " * 99)
print(result.to_dict()["agrees"], len(result.to_pandas()))
# ---
advice = ropeconv.advise("Llama-2-7b-hf", "256")
print(advice.best)
# ---
print(ropeconv.advise("Llama-2-7b-hf", 256).to_pandas().head())
# ---
done = ropeconv.apply("Llama-2-7b-hf", yarn=4, out="other")
print(ropeconv.compare("Llama-2-7b-hf", done).sentence)
# ---
difference = ropeconv.compare("Llama-2-7b-hf", "Llama-2-7b-hf")
assert difference.same
# ---
result = ropeconv.evaluate("Llama-2-7b-hf", ["base", "yarn:4"], "book.txt", lengths=[32, 64])
print(result.to_pandas().head())
# ---
result = ropeconv.evaluate("Llama-2-7b-hf", "base,linear:2", "book.txt", lengths="1T", windows=2)
print(result.cells[0].value)
# ---
found = ropeconv.tune("Llama-2-7b-hf", "book.txt", 128, windows=4, steps=2, targets=16)
recipe = ropeconv.Recipe.from_dict(found.recipe)
# ---
done = ropeconv.apply("Llama-2-7b-hf", yarn=4, out="to-restore")
print(ropeconv.restore(done, out="restored").path)
# ---
outputs = ropeconv.profiles("Llama-2-7b-hf", ["base", "yarn:2", "yarn:4"], out="profiles")
print(outputs["yarn4"].path)
# ---
ropeconv.plot("Llama-2-7b-hf", yarn=4, mixed=4, out="plot.svg")
# ---
table = ropeconv.plot("Llama-2-7b-hf", yarn=4).to_pandas()
print(table["divided_by"].max())
# ---
print(ropeconv.bound("128k").base, ropeconv.bound(4096, head_dim=64).base)
# ---
done = ropeconv.apply("Llama-2-7b-hf", yarn=16, out="to-train")
print(ropeconv.train_config(done, "axolotl").text)
# ---
Path("plan.toml").write_text('sources = ["Llama-2-7b-hf"]\nrecipes = ["yarn:4"]\ntasks = ["apply"]')
table = ropeconv.run("plan.toml")
print(table.counts)
# ---
receipt = ropeconv.read_receipt(ropeconv.apply("Llama-2-7b-hf", yarn=4, out="with-receipt"))
print(receipt.recipe, receipt.schedule.digest)
# ---
with contextlib.suppress(ropeconv.UnsupportedBake):
    ropeconv.apply("Llama-2-7b-hf", yarn=4, runtime="vllm", encoding="keys", out="refused")
# ---
spec = ropeconv.inspect("Llama-2-7b-hf").spec
schedule = ropeconv.Recipe(ropeconv.METHODS["yarn"](4.0)).schedule(spec)
print(ropeconv.reach(schedule.inv_freq, spec.unrotated, schedule.context).effective_length)
