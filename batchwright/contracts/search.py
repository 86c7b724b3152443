"""Search attributes: what batches are listed and found by in Temporal; low cardinality, no personal data.

Registered by `batchwright dev` and by whoever runs a cluster.
"""

from temporalio.common import SearchAttributeKey

STATUS = SearchAttributeKey.for_keyword("BatchwrightStatus")
TENANT = SearchAttributeKey.for_keyword("BatchwrightTenant")
MODELS = SearchAttributeKey.for_keyword_list("BatchwrightModels")
DEADLINE = SearchAttributeKey.for_datetime("BatchwrightDeadline")
SEARCH_ATTRIBUTES = (STATUS, TENANT, MODELS, DEADLINE)
