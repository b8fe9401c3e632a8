"""Lowering: from groups of fused ops to schedules, memory orders and the plan."""
