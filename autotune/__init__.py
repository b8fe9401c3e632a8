"""How choices are made: cost model, measurement, search, records and their stores."""
