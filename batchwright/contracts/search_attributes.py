"""Search attributes of Temporal, by which operators find batches there. They contain no personal data.

`batchwright dev` and `batchwright setup temporal` create them in Temporal.
"""

from temporalio.common import SearchAttributeKey

STATUS = SearchAttributeKey.for_keyword("BatchwrightStatus")
TENANT = SearchAttributeKey.for_keyword("BatchwrightTenant")
MODELS = SearchAttributeKey.for_keyword_list("BatchwrightModels")
DEADLINE = SearchAttributeKey.for_datetime("BatchwrightDeadline")
SEARCH_ATTRIBUTES = (STATUS, TENANT, MODELS, DEADLINE)
