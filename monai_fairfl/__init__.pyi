# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .bundle.federation import BundleFederation as BundleFederation
from .bundle.shipped import find_bundle as find_bundle
from .bundle.site import bundle_client as bundle_client
from .client.algo import FairMonaiAlgo as FairMonaiAlgo
from .messages import Estimate as Estimate
from .messages import Measure as Measure
from .messages import ModelSpec as ModelSpec
from .messages import Reply as Reply
from .messages import Request as Request
from .messages import Train as Train
from .messages import read_spec as read_spec
from .model_files.recipe import ModelRecipe as ModelRecipe
from .replies import Replies as Replies
from .replies import normalise as normalise
from .report.write import write_report as write_report
from .run.ledger import read_ledger as read_ledger
from .server.exchange import Transport as Transport
from .server.federation import Federation as Federation
from .server.federation import History as History
from .strategies.base import RoundResult as RoundResult
from .strategies.base import Strategy as Strategy
from .strategies.base import compose as compose
from .transports.in_process import Client as Client
from .transports.in_process import InProcess as InProcess
from .utils.arguments import argument as argument
from .utils.arguments import remembered as remembered
from .utils.tensors import own_random_state as own_random_state
from .utils.tensors import seed_of as seed_of

__version__: str
