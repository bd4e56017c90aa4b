-- Which actions a TenSafeTrainingJob offers: suspend or resume, and neither once it has ended.
local phase = obj.status and obj.status.phase
local over = phase == "Succeeded" or phase == "BudgetExhausted" or phase == "Failed"
local suspended = obj.spec.suspend == true

return {
  suspend = {disabled = over or suspended},
  resume = {disabled = over or not suspended},
}
