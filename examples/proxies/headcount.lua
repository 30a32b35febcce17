-- Asks headcount about a request, and gives the client the answer if it is a refusal. Otherwise sets txn.headcount_status
-- (200; nothing if headcount does not answer), _decision, _mode, _pass and _cookie.

local GATE = "abns@headcount"
local FORWARDED = { "authorization", "x-headcount-pass", "accept", "origin", "access-control-request-method" }

local HOPS = { connection = true, ["keep-alive"] = true, ["transfer-encoding"] = true, ["content-length"] = true }

core.register_action("headcount", { "http-req" }, function(txn)
    local asked = txn.http:req_get_headers()
    local headers = { host = { "headcount" } }
    for _, name in ipairs(FORWARDED) do
        if asked[name] then
            local values = {}
            for place = 0, #asked[name] do
                values[place + 1] = asked[name][place]
            end
            headers[name] = values
        end
    end
    headers["x-original-method"] = { txn.sf:method() }
    headers["x-original-uri"] = { txn.sf:pathq() }
    headers["x-forwarded-for"] = { txn.sf:src() }
    headers["x-forwarded-proto"] = { txn.sf:ssl_fc() == "1" and "https" or "http" }

    local ok, answer = pcall(function()
        return core.httpclient():get { url = "http://headcount/v1/check", dst = GATE, headers = headers, timeout = 100 }
    end)
    if not ok or not answer or not answer.status or answer.status == 0 or answer.status >= 500 then
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
