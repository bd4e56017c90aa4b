-- Actions of a TenSafeTrainingJob: suspend or resume, and none once it has ended.
local phase = obj.status and obj.status.phase
local ended = phase == "Succeeded" or phase == "BudgetExhausted" or phase == "Failed"
local suspended = obj.spec.suspend == true

return {
  suspend = {disabled = ended or suspended},
  resume = {disabled = ended or not suspended},
}
