-- Asks headcount about a request. If headcount refuses it, sends the refusal to the client. If headcount answers 200,
-- sets txn.headcount_status, _decision, _mode, _pass and _cookie. If headcount does not answer, sets none of them.
--
-- If headcount does not answer in time, the gate answers with a status of 500 or more. An answer that is not from the
-- gate, or a 503 after the whole wait in the queue, means that HAProxy has no connection for another check. That
-- rejects.

local GATE = "abns@headcount"
local FORWARDED = { "authorization", "x-headcount-pass", "x-headcount-ticket", "accept", "accept-language", "origin",
    "access-control-request-method" }

-- A request with more values of these headers, all counted together, is refused: HAProxy 2.6 crashes when it sends
-- many.
local MOST_VALUES = 16

-- The longest wait of a check in the queue of the gate ("timeout queue"), in seconds.
local LONGEST_WAIT = 5

local HOPS = { connection = true, ["keep-alive"] = true, ["transfer-encoding"] = true, ["content-length"] = true,
    ["x-headcount-gate"] = true }

local function now()
    local time = core.now()
    return time.sec + time.usec / 1000000
end

local function no_place(txn)
    txn:done(txn:reply { status = 503, headers = { ["retry-after"] = { "1" } } })
end

core.register_action("headcount", { "http-req" }, function(txn)
    local asked = txn.http:req_get_headers()
    local headers = { host = { "headcount" } }
    local count = 0
    for _, name in ipairs(FORWARDED) do
        if asked[name] then
            local values = {}
            for place = 0, #asked[name] do
                values[place + 1] = asked[name][place]
            end
            headers[name] = values
            count = count + #values
        end
    end
    if count > MOST_VALUES then
        txn:done(txn:reply { status = 400 })
    end
    headers["x-original-method"] = { txn.sf:method() }
    headers["x-original-uri"] = { txn.sf:pathq() }
    headers["x-original-upgrade"] = asked["upgrade"] and { "yes" } or nil
    headers["x-forwarded-for"] = { txn.sf:src() }
    headers["x-forwarded-proto"] = { txn.sf:ssl_fc() == "1" and "https" or "http" }

    local since = now()
    local ok, answer = pcall(function()
        local check = { url = "http://headcount/v1/check", dst = GATE, headers = headers, timeout = 6000 }
        return core.httpclient():get(check)
    end)
    if not ok or not answer or not answer.headers or not answer.headers["x-headcount-gate"] then
        no_place(txn)
    end
    if answer.status == 503 and now() - since >= LONGEST_WAIT then
        no_place(txn)
    end
    if answer.status >= 500 then
        return
    end
    if answer.status ~= 200 then
        local said = {}
        for name, values in pairs(answer.headers) do
            if not HOPS[name] then
                said[name] = { values[0] }
            end
        end
        txn:done(txn:reply { status = answer.status, headers = said, body = answer.body or "" })
    end
    txn:set_var("txn.headcount_status", answer.status)
    for variable, name in pairs({
        decision = "x-headcount-decision",
        mode = "x-headcount-mode",
        pass = "x-headcount-pass",
        cookie = "set-cookie",
    }) do
        local value = answer.headers[name] and answer.headers[name][0]
        if value then
            txn:set_var("txn.headcount_" .. variable, value)
        end
    end
end)
