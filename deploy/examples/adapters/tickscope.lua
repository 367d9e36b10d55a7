-- A limiter in nginx's Lua reports to tickscope what it decides: copy this file to where lua_package_path leads, and after a decision, in access_by_lua or content_by_lua, add
--     require("tickscope").report("checkout", "refused", { key = customer, burst = 5, remaining = left })
-- Nobody waits for it: what cannot be sent at once, since there is no agent or it is behind, is counted by each worker, and reported with the next that can (dropped).
-- The other fields: docs/limiters-reference.md, "Message". OpenResty, or Debian's libnginx-mod-http-lua.

local tickscope = { path = "unix:/run/tickscope/intake.sock" }
local dropped = 0

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\" }

local function escaped(character)
    return escapes[character] or string.format("\\u%04x", string.byte(character))
end

local function value(given)
    if type(given) == "number" then
        return given == given and math.abs(given) < 1e300 and string.format("%.15g", given) or "null"
    elseif type(given) == "boolean" then
        return tostring(given)
    end
    return '"' .. string.gsub(string.sub(tostring(given), 1, 500), '[%c"\\]', escaped) .. '"'
end

local function message(fields)
    local parts = {}
    for name, given in pairs(fields) do
        parts[#parts + 1] = value(name) .. ":" .. value(given)
    end
    return "{" .. table.concat(parts, ",") .. "}"
end

local function sent(text)
    local socket = ngx.socket.udp()
    local ok = socket:setpeername(tickscope.path)
    ok = ok and socket:send(text)
    socket:close()
    return ok
end

-- result: allowed, refused, delayed, error or cancelled. more: further fields, or nil. Raises nothing.
function tickscope.report(limiter, result, more)
    local fields = { limiter = limiter, result = result, library = "nginx lua", dropped = dropped }
    for name, given in pairs(more or {}) do
        fields[name] = given
    end
    dropped = dropped + 1 -- until it is sent: another request's turn may come meanwhile
    local reported = dropped
    local done, ok = pcall(function() return sent(message(fields)) end)
    if done and ok then
        dropped = dropped - reported
    end
end

return tickscope
