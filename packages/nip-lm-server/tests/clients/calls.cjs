// Calls of openai-node: CALL BASE KEY MODEL. Prints what came of it; fails if that is wrong.
const assert = require("node:assert");
const OpenAI = require("openai").default ?? require("openai");
const { toFile } = require("openai");

const [call, baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "Is it right?" }];
const schema = {
  type: "object",
  properties: { verdict: { enum: ["accept", "reject"] }, sure: { type: "boolean" } },
  required: ["verdict", "sure"],
  additionalProperties: false,
};
const response_format = { type: "json_schema", json_schema: { name: "verdict", strict: true, schema } };
const tools = [{ type: "function", function: { name: "judge", parameters: schema } }];
const common = { model, messages, max_tokens: 150 };

function check(text) {
  const value = JSON.parse(text);
  assert.ok(["accept", "reject"].includes(value.verdict) && typeof value.sure === "boolean", text);
}

const calls = {
  async chat() {
    const answer = await client.chat.completions.create(common);
    assert.ok(answer.choices[0].message.content && answer.usage.total_tokens > 0);
  },
  async stream() {
    let text = "";
    for await (const chunk of await client.chat.completions.create({ ...common, stream: true }))
      text += chunk.choices[0]?.delta?.content ?? "";
    assert.ok(text);
  },
  async json_schema() {
    const answer = await client.chat.completions.create({ ...common, response_format });
    check(answer.choices[0].message.content);
  },
  async json_schema_stream() {
    const stream = client.chat.completions.stream({ ...common, response_format });
    check((await stream.finalChatCompletion()).choices[0].message.content);
  },
  async tools() {
    const answer = await client.chat.completions.create({ ...common, tools, tool_choice: "required" });
    const [one] = answer.choices[0].message.tool_calls;
    check(one.function.arguments);
    const result = { role: "tool", tool_call_id: one.id, content: "done" };
    const history = [...messages, answer.choices[0].message, result];
    const after = await client.chat.completions.create({ ...common, messages: history, tools });
    assert.ok(after.choices[0].message);
  },
  async models() {
    const names = [];
    for await (const each of client.models.list()) names.push(each.id);
    assert.ok(names.includes(model));
    assert.equal((await client.models.retrieve(model)).id, model);
  },
  async fine_tune() {
    const line = JSON.stringify({ messages: [...messages, { role: "assistant", content: "yes" }] }) + "\n";
    const file = await client.files.create({
      file: await toFile(Buffer.from(line.repeat(10)), "train.jsonl"),
      purpose: "fine-tune",
    });
    let job = await client.fineTuning.jobs.create({ model, training_file: file.id, suffix: "from node" });
    while (!["succeeded", "failed", "cancelled"].includes(job.status)) {
      await new Promise((done) => setTimeout(done, 100));
      job = await client.fineTuning.jobs.retrieve(job.id);
    }
    assert.equal(job.status, "succeeded", JSON.stringify(job.error));
    const answer = await client.chat.completions.create({ ...common, model: job.fine_tuned_model });
    assert.ok(answer.choices[0].message.content);
  },
  async embeddings() {
    await assert.rejects(client.embeddings.create({ model, input: "a" }), OpenAI.NotFoundError);
    return "404";
  },
  async responses() {
    await assert.rejects(client.responses.create({ model, input: "a" }), OpenAI.NotFoundError);
    return "404";
  },
};

calls[call]().then(
  (outcome) => console.log(outcome ?? "yes"),
  (error) => {
    console.error(error);
    process.exitCode = 1;
  },
);
