-- Health of a TenSafeTrainingJob in Argo CD, from the phase and the conditions in its status.
local health_of_phase = {Suspended = "Suspended", Succeeded = "Healthy", BudgetExhausted = "Healthy", Failed = "Degraded"}
local final = {Succeeded = true, BudgetExhausted = true, Failed = true}

local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

-- The reason and the message, as `kubectl describe` shows them.
local function health(word, condition)
  if condition == nil then
    return {status = word, message = status.phase}
  end
  return {status = word, message = condition.reason .. ": " .. (condition.message or "")}
end

if status.phase == nil then
  return {status = "Progressing", message = "Waiting for the TenSafe operator"}
end
-- A final phase never changes. Any other phase is out of date once the spec has changed.
if not final[status.phase] and (status.observedGeneration or -1) < (obj.metadata.generation or 0) then
  return {status = "Progressing", message = "Waiting for the TenSafe operator to see the last change"}
end
local stalled = conditions.Stalled
if stalled ~= nil and stalled.status == "True" then
  return health("Degraded", stalled)
end
return health(health_of_phase[status.phase] or "Progressing", conditions.Ready)
