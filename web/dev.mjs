// For work on the page: builds it anew for each look, and passes all else on to a server's admin port.
//   npm run dev -- http://127.0.0.1:8003 [port]
import { createServer } from "node:http";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const [server, port = "8080"] = process.argv.slice(2);
if (!server) throw new Error("name the server: npm run dev -- http://127.0.0.1:8003");
const here = (path) => fileURLToPath(new URL(path, import.meta.url));

createServer(async (request, response) => {
  try {
    if (request.url === "/" || request.url === "/admin") {
      execFileSync(process.execPath, [here("build.mjs")], { stdio: "inherit" });
      response.setHeader("Content-Type", "text/html; charset=utf-8");
      response.end(readFileSync(here("dist/admin.html")));
      return;
    }
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const { authorization } = request.headers;
    const answer = await fetch(new URL(request.url, server), { method: request.method, headers: authorization ? { authorization } : {}, body: chunks.length ? Buffer.concat(chunks) : undefined });
    response.writeHead(answer.status, { "Content-Type": answer.headers.get("content-type") ?? "application/json" });
    response.end(Buffer.from(await answer.arrayBuffer()));
  } catch (error) {
    response.writeHead(502);
    response.end(String(error));
  }
}).listen(Number(port), "127.0.0.1", () => console.log(`http://127.0.0.1:${port}/ shows ${server}`));
