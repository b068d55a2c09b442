// Fumehood's plugin for OpenCode, written by `fumehood setup opencode`: commands run in the hood. Where anything goes
// wrong here, an error is thrown, and the tool is not run.
import { spawn } from "node:child_process"

const HOOK = LINE
const EDITS = TOOLS

const asked = (call, cwd) => new Promise((resolve, reject) => {
  const child = spawn("/bin/sh", ["-c", HOOK], { cwd, stdio: ["pipe", "pipe", "pipe"] })
  let answer = "", errors = ""
  child.stdout.setEncoding("utf8").on("data", (text) => { answer += text })
  child.stderr.setEncoding("utf8").on("data", (text) => { errors += text })
  child.on("error", reject)
  child.on("close", (status) => {
    try {
      if (status !== 0) throw new Error(errors.trim() || `the hook ended with ${status}`)
      resolve(JSON.parse(answer))
    } catch (error) {
      reject(new Error(`nothing was run: ${error.message}`))
    }
  })
  child.stdin.on("error", () => {})
  child.stdin.end(JSON.stringify(call))
})

export const Fumehood = async ({ client, directory }) => {
  const conversations = new Map()
  // A subagent's session belongs to the one that started it.
  const conversation = async (id) => {
    if (!conversations.has(id)) {
      const { data } = await client.session.get({ path: { id }, throwOnError: true })
      conversations.set(id, data.parentID ? await conversation(data.parentID) : id)
    }
    return conversations.get(id)
  }
  const about = async (event, input, args) => asked({
    hook_event_name: event, tool_name: input.tool, tool_input: args, tool_use_id: input.callID, cwd: directory,
    session_id: await conversation(input.sessionID),
  }, directory)
  return {
    "tool.execute.before": async (input, output) => {
      const answer = await about("tool.execute.before", input, output.args)
      if ("deny" in answer) throw new Error(answer.deny)
      if ("tool_input" in answer) Object.assign(output.args, answer.tool_input)
    },
    "tool.execute.after": async (input) => {
      if (EDITS.includes(input.tool)) await about("tool.execute.after", input, input.args)
    },
  }
}
